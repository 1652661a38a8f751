"""Invitations into projects. Nobody becomes a member without accepting, and no response reveals whether a
name exists."""

from __future__ import annotations

from datetime import timedelta

from django.db import IntegrityError, transaction
from django.utils import timezone

from projects.access import require_all_projects, require_role
from projects.errors import Conflict, NotFound, QuotaExceeded
from projects.login_attempts import normalised_name
from projects.models import Invitation, Membership, Project, Role, User
from projects.services.openness import lock_open_project

VALID_FOR = timedelta(days=14)
MAXIMUM_OPEN = 100


@transaction.atomic
def invitation_create(*, project: Project, actor: User, username: str, role: Role) -> Invitation:
    """Invite the person of that name. The response is the same whether or not there is such an account.

    Raises:
        NotAllowed: the actor does not own the project.
        Conflict: a user of that name is a member or has an open invitation, or the project is archived.
        QuotaExceeded: too many invitations are open.
    """
    require_role(actor, project, Role.OWNER)
    lock_open_project(project)
    username = normalised_name(username)
    now = timezone.now()
    Invitation.objects.filter(project=project, expires_at__lte=now).delete()
    if Membership.objects.filter(project=project, user__username=username).exists():
        raise Conflict(f"{username} is a member of {project.name} already; change the role instead.")
    if project.invitations.count() >= MAXIMUM_OPEN:
        raise QuotaExceeded(f"{MAXIMUM_OPEN} invitations wait for an answer; withdraw some first.")
    try:
        with transaction.atomic():
            return Invitation.objects.create(
                project=project, username=username, role=role, invited_by=actor, expires_at=now + VALID_FOR
            )
    except IntegrityError as error:
        raise Conflict(f"{username} was asked already; withdraw that invitation first.") from error


def invitation_withdraw(*, invitation: Invitation, actor: User) -> None:
    """Withdraw the invitation."""
    require_role(actor, invitation.project, Role.OWNER)
    invitation.delete()


@transaction.atomic
def invitation_accept(*, invitation: Invitation, person: User) -> Membership:
    """Become a member with the role that was offered.

    Raises:
        NotFound: the invitation was withdrawn or answered concurrently.
        NotAllowed: the person uses a token for single projects.
    """
    require_all_projects(person)
    lock_open_project(invitation.project)
    if not Invitation.objects.filter(pk=invitation.pk, declined_at__isnull=True).delete()[0]:
        raise NotFound("There is no such invitation for you.")
    membership, _ = Membership.objects.get_or_create(
        project=invitation.project, user=person, defaults={"role": invitation.role}
    )
    return membership


def invitation_decline(*, invitation: Invitation) -> None:
    """Decline. The project's owners are not notified and cannot invite the name again before the invitation
    expires."""
    Invitation.objects.filter(pk=invitation.pk).update(declined_at=timezone.now())
