"""Issuing, rotating and revoking tokens. The token itself exists in the answer alone; a digest is stored."""

from __future__ import annotations

import secrets
from datetime import datetime

from django.contrib.auth import authenticate
from django.db import transaction
from django.http import HttpRequest
from django.utils import timezone

from projects.errors import Conflict, InvalidRequest, QuotaExceeded, WrongCredentials
from projects.models import ApiToken, User, token_digest

#: Enough for people and machines, few enough to be overseen.
MAXIMUM_TOKENS = 200
PREFIX_LENGTH = 12


def _new_secret() -> str:
    return "pt_" + secrets.token_urlsafe(32)


@transaction.atomic
def token_issue(*, user: User, name: str, expires_at: datetime | None = None) -> tuple[ApiToken, str]:
    """Give the person a new token; returns its row and the token itself.

    Raises:
        InvalidRequest: ``expires_at`` has passed.
        QuotaExceeded: the person holds too many.
    """
    if expires_at is not None and expires_at <= timezone.now():
        raise InvalidRequest(
            "The token would be expired.", errors={"expires_at": ["Must lie in the future."]}
        )
    # The user's row serialises this person's requests, so that the count holds.
    User.objects.select_for_update(no_key=True).get(pk=user.pk)
    if ApiToken.objects.filter(user=user, revoked_at__isnull=True).count() >= MAXIMUM_TOKENS:
        raise QuotaExceeded(f"You hold {MAXIMUM_TOKENS} tokens already; revoke one that is not used.")
    secret = _new_secret()
    token = ApiToken.objects.create(
        user=user,
        name=name,
        prefix=secret[:PREFIX_LENGTH],
        digest=token_digest(secret),
        expires_at=expires_at,
    )
    return token, secret


def token_rotate(*, token: ApiToken) -> tuple[ApiToken, str]:
    """Replace the token by a new one under the same id, name and expiry; the old one stops working at once.

    Raises:
        Conflict: the token was revoked, has expired, or was rotated by somebody else at the same time.
    """
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


def token_revoke(*, token: ApiToken) -> None:
    """Close the door for this token, now and for ever. Harmless when repeated."""
    ApiToken.objects.filter(pk=token.pk, revoked_at__isnull=True).update(revoked_at=timezone.now())


def log_in(
    *, request: HttpRequest, username: str, password: str, token_name: str
) -> tuple[User, ApiToken, str]:
    """Exchange user name and password for a token.

    Raises:
        WrongCredentials: the pair opens no account (unknown, wrong and disabled look alike).
    """
    user = authenticate(request, username=username, password=password)
    if not isinstance(user, User):
        raise WrongCredentials("User name or password is wrong.")
    token, secret = token_issue(user=user, name=token_name)
    return user, token, secret
