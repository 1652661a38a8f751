"""Accounts: operators, and users of `manage.py`, create them, disable them and set their passwords.

A generated password exists only in the response; its hash is stored. Nothing here logs a password.
"""

from __future__ import annotations

import secrets
import string
from collections.abc import Sequence

import structlog
from django.contrib.auth.password_validation import validate_password
from django.core.exceptions import ValidationError
from django.db import IntegrityError, transaction
from django.db.models import Q

from projects.access import require_operator
from projects.errors import Conflict, InvalidRequest
from projects.models import SERVICE_ACCOUNTS, Invitation, Membership, Project, Role, User
from projects.services.openness import lock_open_project

log = structlog.get_logger(__name__)

#: Length of a generated password: 95 random bits.
PASSWORD_LENGTH = 16
MAXIMUM_PASSWORD_LENGTH = 1000
_OPERATES = Q(is_active=True) & (Q(is_operator=True) | Q(is_superuser=True))


@transaction.atomic
def user_create(
    *,
    actor: User | None,
    username: str,
    password: str | None = None,
    is_operator: bool = False,
    projects: Sequence[tuple[str, Role]] = (),
) -> tuple[User, str | None]:
    """Create an account. Returns it and the password, if that was generated.

    Args:
        actor: the operator; None for `manage.py`.
        password: None: one is generated.
        projects: names of projects and the user's role in each.

    Raises:
        NotAllowed: the actor is no operator.
        InvalidRequest: an invalid name or password, or no such project.
        Conflict: the name is taken; a project is archived.
    """
    _require_operator(actor)
    username = _checked_name(username)
    user = User(username=username, is_operator=is_operator)
    generated = _set_password(user, password)
    try:
        with transaction.atomic():
            user.save()
    except IntegrityError as error:
        raise Conflict(
            f"The user name {username} is taken; choose another one.",
            errors={"username": ["Another account has this name."]},
        ) from error
    for name, role in projects:
        _join(user, name, role)
    log.info("user_created", username=username, is_operator=is_operator, by=_name(actor))
    return user, generated


def _checked_name(username: str) -> str:
    username = User.normalize_username(username)
    try:
        User._meta.get_field("username").run_validators(username)
        problems = [] if username and len(username) <= 150 else ["1 to 150 characters."]
    except ValidationError as error:
        problems = error.messages
    if username.startswith(SERVICE_ACCOUNTS):
        problems = [f"Names that begin with {SERVICE_ACCOUNTS} belong to the platform."]
    if problems:
        raise InvalidRequest("This cannot be a user name.", errors={"username": problems})
    return username


def _join(user: User, name: str, role: Role) -> None:
    project = Project.objects.filter(name=name).first()
    if project is None:
        raise InvalidRequest(
            f"There is no project {name}.", errors={"projects": [f"No such project: {name}."]}
        )
    lock_open_project(project)
    _, created = Membership.objects.get_or_create(project=project, user=user, defaults={"role": role})
    if not created:
        raise InvalidRequest(
            f"Project {name} is named twice.", errors={"projects": [f"Name {name} only once."]}
        )
    Invitation.objects.filter(project=project, username=user.username).delete()


@transaction.atomic
def user_update(
    *, user: User, actor: User | None, is_active: bool | None = None, is_operator: bool | None = None
) -> User:
    """Disable or enable an account, or change whether it is an operator.

    Sessions and tokens of a disabled account stop working at once; when it is enabled, they work again. Its
    jobs continue.

    Raises:
        NotAllowed: the actor is no operator.
        Conflict: no active operator would be left.
    """
    _require_operator(actor)
    if (is_active is False or is_operator is False) and is_last_operator(user):
        raise Conflict(f"{user.username} is the last active operator; make somebody else one first.")
    user = User.objects.select_for_update(no_key=True).get(pk=user.pk)
    if is_active is not None:
        user.is_active = is_active
    if is_operator is not None:
        user.is_operator = is_operator
        user.is_superuser = user.is_superuser and is_operator
    user.save(update_fields=["is_active", "is_operator", "is_superuser"])
    log.info(
        "user_changed",
        username=user.username,
        is_active=user.is_active,
        is_operator=user.is_operator or user.is_superuser,
        by=_name(actor),
    )
    return user


@transaction.atomic
def is_last_operator(user: User) -> bool:
    """Return whether this user is the only active operator. Holds until the transaction ends."""
    # Locking all operators' rows in one order serialises two operators who disable each other.
    operators = User.objects.filter(_OPERATES).order_by("pk").select_for_update(no_key=True)
    return set(operators.values_list("pk", flat=True)) == {user.pk}


@transaction.atomic
def password_reset(*, user: User, actor: User | None, password: str | None = None) -> str | None:
    """Set another password; returns it if it was generated. The account's sessions end, its tokens stay.

    Raises:
        NotAllowed: the actor is no operator.
        InvalidRequest: the password is too weak.
    """
    _require_operator(actor)
    user = User.objects.select_for_update(no_key=True).get(pk=user.pk)
    generated = _set_password(user, password)
    user.save(update_fields=["password"])
    log.info("password_reset", username=user.username, by=_name(actor))
    return generated


def _set_password(user: User, password: str | None) -> str | None:
    """Set a password without saving the user; returns it if it was generated."""
    generated = None
    if password is None:
        alphabet = string.ascii_letters + string.digits
        password = generated = "".join(secrets.choice(alphabet) for _ in range(PASSWORD_LENGTH))
    else:
        try:
            validate_password(password, user)
            problems = [] if len(password) <= MAXIMUM_PASSWORD_LENGTH else ["At most 1000 characters."]
        except ValidationError as error:
            problems = error.messages
        if problems:
            raise InvalidRequest("This password is refused.", errors={"password": problems})
    user.set_password(password)
    return generated


def _require_operator(actor: User | None) -> None:
    if actor is not None:
        require_operator(actor)


def _name(actor: User | None) -> str:
    return "manage.py" if actor is None else actor.username
