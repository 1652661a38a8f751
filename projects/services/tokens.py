"""Issuing, rotating and revoking tokens. A token exists only in the response that issues it; its digest is
stored."""

from __future__ import annotations

import secrets
from collections.abc import Sequence
from datetime import datetime, timedelta

from django.contrib.auth import authenticate
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone

from projects.access import require_scope
from projects.errors import Conflict, InvalidRequest, NotAllowed, QuotaExceeded, WrongCredentials
from projects.models import ApiToken, Scope, User, all_scopes, token_digest
from projects.selectors import projects_visible_to

#: Enough for people and machines, few enough to review.
MAXIMUM_TOKENS = 200
PREFIX_LENGTH = 12
#: More often, a write per request would say no more.
USE_NOTED_EVERY = timedelta(minutes=1)


def _new_secret() -> str:
    return "pt_" + secrets.token_urlsafe(32)


@transaction.atomic
def token_issue(
    *,
    user: User,
    name: str,
    expires_at: datetime | None = None,
    scopes: Sequence[str] | None = None,
    projects: Sequence[str] | None = None,
) -> tuple[ApiToken, str]:
    """Issue a new token to the user. Returns its row and the token itself.

    A token issued by means of another token has at most that token's limits; omitted limits, including the
    expiry, are copied from it.

    Raises:
        InvalidRequest: ``expires_at`` has passed or is later than the issuing token's; no such project.
        NotAllowed: more scopes or projects than the issuing token has.
        QuotaExceeded: the user holds too many tokens.
    """
    issuer = user.acting_token
    token = ApiToken(
        user=user,
        name=name,
        issued_by=issuer,
        expires_at=_expiry(issuer, expires_at),
        scopes=_scopes(issuer, scopes),
        project_ids=_project_ids(user, projects),
    )
    # Locking the user's row serialises this user's requests, so that the count holds.
    User.objects.select_for_update(no_key=True).get(pk=user.pk)
    if ApiToken.objects.filter(user=user, revoked_at__isnull=True).count() >= MAXIMUM_TOKENS:
        raise QuotaExceeded(f"You hold {MAXIMUM_TOKENS} tokens already; revoke one that is not used.")
    secret = _new_secret()
    token.prefix, token.digest = secret[:PREFIX_LENGTH], token_digest(secret)
    token.save()
    return token, secret


def _expiry(issuer: ApiToken | None, wanted: datetime | None) -> datetime | None:
    if wanted is not None and wanted <= timezone.now():
        raise InvalidRequest("expires_at is in the past.", errors={"expires_at": ["Must be in the future."]})
    latest = None if issuer is None else issuer.expires_at
    if latest is None:
        return wanted
    if wanted is not None and wanted > latest:
        raise InvalidRequest(
            "A new token cannot expire after the token that creates it.",
            errors={
                "expires_at": [
                    f"Must be at most {latest.isoformat()}, when the token of this request expires."
                ]
            },
        )
    return wanted or latest


def _scopes(issuer: ApiToken | None, wanted: Sequence[str] | None) -> list[str]:
    most = all_scopes() if issuer is None else issuer.scopes
    if wanted is None:
        return list(most)
    missing = [scope for scope in wanted if scope not in most]
    if missing:
        raise NotAllowed(
            f"A token cannot give scopes that it lacks: {', '.join(missing)}.",
            errors={"scopes": [f"At most: {', '.join(most)}."]},
        )
    return [scope for scope in all_scopes() if scope in wanted]


def _project_ids(user: User, wanted: Sequence[str] | None) -> list[int] | None:
    if wanted is None:
        issuer = user.acting_token
        return None if issuer is None else issuer.project_ids
    found = dict(projects_visible_to(user).filter(name__in=wanted).values_list("name", "pk"))
    missing = sorted(set(wanted) - set(found))
    if missing:
        raise InvalidRequest(
            f"There is no project {missing[0]} among yours.",
            errors={"projects": [f"No such project: {', '.join(missing)}."]},
        )
    return sorted(found.values())


def token_rotate(*, token: ApiToken, actor: User) -> tuple[ApiToken, str]:
    """Replace the token by a new one with the same id, name, limits and expiry. The old one stops working at
    once.

    Raises:
        NotAllowed: the request uses another token that has less than this one, or may not manage tokens.
        Conflict: the token was revoked, has expired, or was rotated concurrently.
    """
    _require_own_or_managing(token, actor)
    asking = actor.acting_token
    if asking is not None and asking.pk != token.pk and not asking.covers(token):
        raise NotAllowed(
            "This token cannot rotate another one that has more scopes or projects, or lasts longer."
        )
    if not token.usable(timezone.now()):
        raise Conflict("An expired or revoked token cannot be rotated; create a new one.")
    secret = _new_secret()
    changed = ApiToken.objects.filter(pk=token.pk, digest=token.digest, revoked_at__isnull=True).update(
        prefix=secret[:PREFIX_LENGTH],
        digest=token_digest(secret),
        created_at=timezone.now(),
        last_used_at=None,
    )
    if not changed:
        raise Conflict("The token was rotated or revoked at the same time.")
    token.refresh_from_db()
    return token, secret


def token_revoke(*, token: ApiToken, actor: User) -> None:
    """Revoke the token at once and for good. Idempotent.

    Raises:
        MissingScope: the request uses another token that may not manage tokens.
    """
    _require_own_or_managing(token, actor)
    ApiToken.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=timezone.now())


def token_note_use(*, token: ApiToken) -> None:
    """Store that the token is used now, at most once a minute, for people who clean up."""
    now = timezone.now()
    if token.last_used_at is None or now - token.last_used_at > USE_NOTED_EVERY:
        ApiToken.objects.filter(pk=token.pk).update(last_used_at=now)


def _require_own_or_managing(token: ApiToken, actor: User) -> None:
    """Check that the request uses this token itself, a session, or a token with the scope to manage
    tokens."""
    if actor.acting_token is not None and actor.acting_token.pk != token.pk:
        require_scope(actor, Scope.MANAGE)


def log_in(
    *, request: HttpRequest, username: str, password: str, token_name: str
) -> tuple[User, ApiToken, str]:
    """Exchange user name and password for a token.

    Raises:
        WrongCredentials: the pair matches no active account (unknown, wrong and disabled look alike).
    """
    user = authenticate(request, username=username, password=password)
    if not isinstance(user, User):
        raise WrongCredentials("User name or password is wrong.")
    token, secret = token_issue(user=user, name=token_name)
    return user, token, secret
