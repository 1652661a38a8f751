"""Asking people into a project. Nobody becomes a member without saying yes, and no answer tells whether a
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
    """Ask the person of that name into the project. No account is looked for: the answer is the same without
    one.

    Raises:
        NotAllowed: the actor does not own the project. Conflict: somebody of that name is a member, or was
            asked and has time left to answer; or it is archived. QuotaExceeded: too many invitations wait for
            their answers.
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
    """Take the question back."""
    require_role(actor, invitation.project, Role.OWNER)
    invitation.delete()


@transaction.atomic
def invitation_accept(*, invitation: Invitation, person: User) -> Membership:
    """Become a member, with the role that was offered.

    Raises:
        NotFound: the invitation was withdrawn, or answered, at the same time.
        NotAllowed: the person asks with a token for single projects.
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
    """Say no. Those who asked are not told; they cannot ask again before it expires."""
    Invitation.objects.filter(pk=invitation.pk).update(declined_at=timezone.now())
