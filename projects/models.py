"""Users, projects, memberships with roles, quotas and tokens."""

from __future__ import annotations

import hashlib
from datetime import datetime
from importlib import import_module
from typing import Any

from django.conf import settings
from django.contrib.auth.models import AbstractUser
from django.contrib.postgres.fields import ArrayField
from django.contrib.sessions.base_session import AbstractBaseSession
from django.core.exceptions import ValidationError
from django.db import models
from django.db.models import Q, QuerySet
from django.utils import timezone

from punctual.names import name_problem

#: Prefix of account names that represent programs and cannot log in.
SERVICE_ACCOUNTS = "inference-scheduler@"


def validate_name(name: str) -> None:
    """Raise Django's ValidationError for a name that :func:`punctual.names.name_problem` rejects."""
    problem = name_problem(name)
    if problem is not None:
        raise ValidationError(f"Letters, digits and symbols that can be seen only: {problem}.")


class User(AbstractUser):
    """A person. Operators see and steer the whole cluster; everyone else sees their projects."""

    username = models.CharField(
        max_length=150,
        unique=True,
        help_text="150 characters or fewer. Letters, digits and @/./+/-/_ only.",
        validators=[AbstractUser.username_validator, validate_name],
        error_messages={"unique": "A user with that username already exists."},
    )
    first_name = models.CharField(max_length=150, blank=True, validators=[validate_name])
    last_name = models.CharField(max_length=150, blank=True, validators=[validate_name])
    is_operator = models.BooleanField(default=False)
    #: The token of the current request, whose limits apply to this user; None: a session, or no request.
    acting_token: ApiToken | None = None

    def operates(self) -> bool:
        """Return whether the user acts as an operator, which a token must allow."""
        token = self.acting_token
        allowed = token is None or (Scope.OPERATE in token.scopes and token.project_ids is None)
        return allowed and self.is_active and (self.is_operator or self.is_superuser)

    def has_perm(self, perm: str, obj: Any = None) -> bool:
        """Return whether the admin permits this; operators may do everything."""
        return self.operates() or super().has_perm(perm, obj)

    def has_module_perms(self, app_label: str) -> bool:
        return self.operates() or super().has_module_perms(app_label)

    def reaches(self, project_id: int) -> bool:
        """Return whether the request's token, if any, covers the project."""
        token = self.acting_token
        return token is None or token.project_ids is None or project_id in token.project_ids

    def reachable_memberships(self) -> QuerySet[Membership]:
        """Return the user's memberships within the limits of the request's token."""
        own = Membership.objects.filter(user=self)
        token = self.acting_token
        return (
            own if token is None or token.project_ids is None else own.filter(project__in=token.project_ids)
        )


class Scope(models.TextChoices):
    """What a token permits, within its user's own permissions."""

    READ = "read", "Read"
    SUBMIT = "submit", "Submit and steer jobs, upload functions"
    MANAGE = "manage", "Manage projects, members and tokens"
    OPERATE = "operate", "Act as operator of the cluster"


def all_scopes() -> list[str]:
    """Return the scopes of an unlimited token."""
    return list(Scope.values)


class Role(models.TextChoices):
    """Permissions in a project. Viewers read; members also submit and steer jobs; owners also manage members
    and quotas."""

    VIEWER = "viewer", "Viewer"
    MEMBER = "member", "Member"
    OWNER = "owner", "Owner"


class Project(models.Model):
    """A group of people with its own jobs."""

    name = models.SlugField(max_length=64, unique=True)
    description = models.CharField(max_length=500, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    #: The user whose limits over all their projects apply to this one, whoever owns it now.
    created_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, blank=True, related_name="+")
    #: Archived: readable, but without new work; null: open.
    archived_at = models.DateTimeField(null=True, blank=True)
    members = models.ManyToManyField(User, through="Membership", related_name="projects")

    def __str__(self) -> str:
        return self.name


class Membership(models.Model):
    """A user's role in a project."""

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="memberships")
    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="memberships")
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)
    created_at = models.DateTimeField(default=timezone.now)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "user"], name="membership_once_per_project")
        ]


class Quota(models.Model):
    """Limits of one project, checked just before an admission is committed. Null means no limit."""

    project = models.OneToOneField(Project, on_delete=models.CASCADE, related_name="quota")
    #: Number of jobs that have not ended.
    active_jobs = models.PositiveIntegerField(null=True, blank=True, default=1000)
    promised_gpu_hours = models.FloatField(null=True, blank=True)
    profiling_seconds_per_day = models.FloatField(null=True, blank=True, default=3600.0)
    stored_bundle_bytes = models.BigIntegerField(null=True, blank=True, default=2 * 1024**3)
    #: Number of deployments that have not stopped, and the sum of their maximum numbers of servers.
    deployments = models.PositiveIntegerField(null=True, blank=True, default=50)
    deployment_servers = models.PositiveIntegerField(null=True, blank=True, default=128)


class UserQuota(models.Model):
    """Limits over all projects that one user created, so that more projects give no more resources. Null
    means no limit."""

    user = models.OneToOneField(User, on_delete=models.CASCADE, related_name="quota")
    #: Number of projects that the user created.
    projects = models.PositiveIntegerField(null=True, blank=True, default=20)
    #: Number of jobs that have not ended.
    active_jobs = models.PositiveIntegerField(null=True, blank=True, default=2000)
    promised_gpu_hours = models.FloatField(null=True, blank=True)
    profiling_seconds_per_day = models.FloatField(null=True, blank=True, default=7200.0)
    stored_bundle_bytes = models.BigIntegerField(null=True, blank=True, default=4 * 1024**3)
    #: Number of deployments that have not stopped.
    deployments = models.PositiveIntegerField(null=True, blank=True, default=100)
    #: Sum of their maximum numbers of servers.
    deployment_servers = models.PositiveIntegerField(null=True, blank=True, default=256)


class Invitation(models.Model):
    """An invitation into a project. It holds a name, not an account, so that it does not reveal whether one
    exists.

    For the project's owners, a declined invitation looks unchanged until it expires.
    """

    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="invitations")
    #: Name of the invited person, of an account or not.
    username = models.CharField(max_length=150)
    #: Role of the member after acceptance.
    role = models.CharField(max_length=10, choices=Role.choices, default=Role.MEMBER)
    invited_by = models.ForeignKey(User, on_delete=models.SET_NULL, null=True, related_name="+")
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField()
    declined_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["project", "username"], name="invitation_once_per_name")
        ]


class ApiToken(models.Model):
    """A user's token. Only its digest is stored; the token itself is shown once, when it is issued."""

    user = models.ForeignKey(User, on_delete=models.CASCADE, related_name="tokens")
    name = models.CharField(max_length=100)
    #: First characters of the token, by which its user recognises it.
    prefix = models.CharField(max_length=12, unique=True)
    #: Hex digest of the token.
    digest = models.CharField(max_length=64, unique=True)
    created_at = models.DateTimeField(default=timezone.now)
    expires_at = models.DateTimeField(null=True, blank=True)
    last_used_at = models.DateTimeField(null=True, blank=True)
    revoked_at = models.DateTimeField(null=True, blank=True)
    #: Rights of the token.
    scopes = ArrayField(models.CharField(max_length=10, choices=Scope.choices), default=all_scopes)
    #: Projects that the token is limited to; null: all of its user's. A deleted project stays in the list, so
    #: that the list never becomes empty and the token unlimited.
    project_ids = ArrayField(models.BigIntegerField(), null=True, blank=True)
    #: The token with which this one was issued; null without one.
    issued_by = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, blank=True, related_name="issued"
    )

    def covers(self, other: ApiToken) -> bool:
        """Return whether ``other`` permits nothing that this token does not permit, and for no longer."""
        if not set(other.scopes) <= set(self.scopes):
            return False
        if self.project_ids is not None and not (
            other.project_ids is not None and set(other.project_ids) <= set(self.project_ids)
        ):
            return False
        return self.expires_at is None or (
            other.expires_at is not None and other.expires_at <= self.expires_at
        )

    def usable(self, now: datetime) -> bool:
        """Return whether the token is valid at ``now``."""
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


class BrowserSession(AbstractBaseSession):
    """A browser session. Its key is the cookie; the digest identifies it where the key must stay secret."""

    key_digest = models.CharField(max_length=64, unique=True)

    @classmethod
    def get_session_store_class(cls) -> type[Any]:
        store: type[Any] = import_module(settings.SESSION_ENGINE).SessionStore
        return store


def token_digest(token: str) -> str:
    """Return the digest under which a token is stored. Tokens have 256 random bits, so a plain hash is
    enough."""
    return hashlib.sha256(token.encode()).hexdigest()


class IdempotencyRecord(models.Model):
    """The first response to a request with an ``Idempotency-Key``, or the claim of a request that is still
    running."""

    user = models.ForeignKey(User, on_delete=models.CASCADE)
    #: The value of `Idempotency-Key`.
    key = models.CharField(max_length=200)
    #: Digest of the first request; another request with the same key is refused.
    request_digest = models.CharField(max_length=64)
    created_at = models.DateTimeField(default=timezone.now)
    finished_at = models.DateTimeField(null=True, blank=True)
    #: Status of the first response; null while the request runs.
    status_code = models.PositiveSmallIntegerField(null=True, blank=True)
    #: Content of the first response.
    body = models.JSONField(null=True, blank=True)
    #: Headers of the first response.
    headers = models.JSONField(default=dict)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["user", "key"], name="idempotency_key_once_per_user"),
            models.CheckConstraint(
                condition=Q(finished_at__isnull=True) | Q(status_code__isnull=False),
                name="finished_idempotent_request_has_answer",
            ),
        ]
