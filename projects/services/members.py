"""Creating projects and managing their members and limits."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db import IntegrityError, transaction

from projects.access import require_operator, require_role
from projects.errors import Conflict, InvalidRequest, NotAllowed, QuotaExceeded
from projects.models import Invitation, Membership, Project, Quota, Role, User, UserQuota
from projects.selectors import user_quota
from projects.services.openness import lock_open_project

QUOTA_FIELDS = (
    "active_jobs",
    "promised_gpu_hours",
    "profiling_seconds_per_day",
    "stored_bundle_bytes",
    "deployments",
    "deployment_servers",
)


@transaction.atomic
def project_create(*, creator: User, name: str, description: str = "") -> Project:
    """Create a project with its creator as owner and the default quota.

    Raises:
        Conflict: the name is taken.
        QuotaExceeded: the creator has reached the limit on projects.
    """
    _check_number(creator)
    try:
        with transaction.atomic():
            project = Project.objects.create(name=name, description=description, created_by=creator)
    except IntegrityError as error:
        raise Conflict(f"The project name {name} is taken; choose another one.") from error
    Membership.objects.create(project=project, user=creator, role=Role.OWNER)
    Quota.objects.create(project=project)
    return project


def _check_number(creator: User) -> None:
    if creator.operates():
        return
    # Locking the user's row serialises this user's requests, so that the count holds.
    User.objects.select_for_update(no_key=True).get(pk=creator.pk)
    limit = user_quota(creator).projects
    count = Project.objects.filter(created_by=creator).count()
    if limit is not None and count >= limit:
        raise QuotaExceeded(
            f"You created {count} projects and may have {limit}, archived ones included; "
            "delete one without jobs, or ask an operator for more."
        )


def project_update(*, project: Project, actor: User, description: str) -> Project:
    """Change the project's description. Its name is part of addresses and stays."""
    require_role(actor, project, Role.OWNER)
    project.description = description
    project.save(update_fields=["description"])
    return project


@transaction.atomic
def member_add(*, project: Project, actor: User, username: str, role: Role) -> Membership:
    """Add a user to the project without an invitation. Only operators may, since they make the accounts;
    owners invite.

    Raises:
        NotAllowed: the actor is no operator.
        InvalidRequest: there is no such user.
        Conflict: the user is a member already.
    """
    if not actor.operates():
        raise NotAllowed("Only operators add members without asking them; invite the person instead.")
    user = User.objects.filter(username=username, is_active=True).first()
    if user is None:
        raise InvalidRequest(
            f"There is no user {username}.",
            errors={"username": ["No such user; an operator creates accounts."]},
        )
    lock_open_project(project)
    membership, created = Membership.objects.get_or_create(
        project=project, user=user, defaults={"role": role}
    )
    if not created:
        raise Conflict(
            f"{username} is a member of {project.name} already, as {membership.role}; change the role "
            f"instead."
        )
    Invitation.objects.filter(project=project, username=username).delete()
    return membership


@transaction.atomic
def member_change_role(*, membership: Membership, actor: User, role: Role) -> Membership:
    """Give a member another role.

    Raises:
        Conflict: the project would be left without an owner.
    """
    require_role(actor, membership.project, Role.OWNER)
    if role != Role.OWNER:
        _keep_an_owner(membership)
    membership.role = role
    membership.save(update_fields=["role"])
    return membership


@transaction.atomic
def member_remove(*, membership: Membership, actor: User) -> None:
    """Remove a member; anyone may leave. The user's jobs stay in the project and continue.

    Raises:
        Conflict: the project would be left without an owner.
    """
    if membership.user_id != actor.pk:
        require_role(actor, membership.project, Role.OWNER)
    _keep_an_owner(membership)
    membership.delete()


def _keep_an_owner(leaving: Membership) -> None:
    # Locking all owners' rows in one order serialises two owners who remove each other.
    owners = Membership.objects.filter(project=leaving.project_id, role=Role.OWNER).order_by("pk")
    owner_ids = list(owners.select_for_update().values_list("pk", flat=True))
    if owner_ids == [leaving.pk]:
        raise Conflict("This is the project's last owner; make somebody else an owner first.")


@transaction.atomic
def quota_update(*, project: Project, actor: User, changes: Mapping[str, Any]) -> Quota:
    """Set limits of a project; None removes a limit. Admitted jobs and deployments stay.

    Raises:
        NotAllowed: the actor is no operator.
    """
    require_operator(actor)
    unknown = set(changes) - set(QUOTA_FIELDS)
    if unknown:
        raise NotAllowed(f"These are not limits of a project: {', '.join(sorted(unknown))}.")
    quota, _ = Quota.objects.get_or_create(project=project)
    for field, value in changes.items():
        setattr(quota, field, value)
    quota.save(update_fields=list(changes))
    return quota


@transaction.atomic
def user_quota_update(*, user: User, actor: User, changes: Mapping[str, Any]) -> UserQuota:
    """Set limits over all of the user's projects; None removes a limit.

    Raises:
        NotAllowed: the actor is no operator.
    """
    require_operator(actor)
    quota, _ = UserQuota.objects.get_or_create(user=user)
    for field, value in changes.items():
        setattr(quota, field, value)
    quota.save(update_fields=list(changes))
    return quota
