"""Queries for projects, members and tokens, scoped to the caller."""

from __future__ import annotations

from collections.abc import Iterable

from django.db.models import Prefetch, QuerySet
from django.utils import timezone

from projects.errors import NotFound
from projects.models import (
    SERVICE_ACCOUNTS,
    ApiToken,
    Invitation,
    Membership,
    Project,
    Quota,
    Role,
    User,
    UserQuota,
    token_digest,
)
from projects.prepared import PreparedRows


def projects_visible_to(user: User) -> QuerySet[Project]:
    """Return all projects for an operator, else those that the user is a member of."""
    if user.operates():
        return Project.objects.all()
    return Project.objects.filter(pk__in=user.reachable_memberships().values("project"))


def projects_for_list(user: User, *, archived: bool | None = None) -> QuerySet[Project]:
    """Return visible projects with the user's own membership prefetched as ``own_memberships``.

    ``archived``: only those that are archived, or only those that are not.
    """
    own = Prefetch("memberships", user.reachable_memberships(), to_attr="own_memberships")
    found = projects_visible_to(user).prefetch_related(own)
    return found if archived is None else found.filter(archived_at__isnull=not archived)


def find_project(user: User, name: str) -> Project | None:
    """Return the visible project of that name, or None."""
    return projects_visible_to(user).filter(name=name).first()


def project_names(project_ids: Iterable[int]) -> list[str]:
    """Return the names of the projects, sorted."""
    return sorted(Project.objects.filter(pk__in=project_ids).values_list("name", flat=True))


def project_get(user: User, name: str) -> Project:
    """Return the project of that name.

    Raises:
        NotFound: there is none, or the user is not a member.
    """
    project = projects_for_list(user).filter(name=name).first()
    if project is None:
        raise NotFound(f"There is no project {name} among yours.")
    return project


_MEMBERSHIP = PreparedRows(
    lambda user, name: (
        Membership.objects.filter(user=user, project__name=name).select_related("project").order_by()
    )
)


def own_membership(user: User, project_name: str) -> Membership | None:
    """Return the user's own membership in the project with its project, if the token covers it; else None."""
    found = _MEMBERSHIP.first(user.pk, project_name)
    return found if found is not None and user.reaches(found.project_id) else None


def memberships_shown_to(user: User) -> QuerySet[Membership]:
    """Return the user's own memberships that the token covers, with their projects."""
    return user.reachable_memberships().select_related("project")


def memberships_to_submit(user: User) -> QuerySet[Membership]:
    """Return the user's memberships in projects that they may submit to."""
    return memberships_shown_to(user).filter(
        role__in=(Role.MEMBER, Role.OWNER), project__archived_at__isnull=True
    )


def role_shown(user: User, project: Project) -> str | None:
    """Return the user's role in a project, without a query if `projects_for_list` read it; None for an
    operator who is no member."""
    own = getattr(project, "own_memberships", None)
    if own is None:
        own = list(Membership.objects.filter(project=project, user=user))
    return own[0].role if own else None


def project_members(project: Project) -> QuerySet[Membership]:
    return Membership.objects.filter(project=project).select_related("user")


def membership_get(project: Project, username: str) -> Membership:
    """Return the membership of a user.

    Raises:
        NotFound: the user is no member.
    """
    membership = project_members(project).filter(user__username=username).first()
    if membership is None:
        raise NotFound(f"{username} is not a member of project {project.name}.")
    return membership


def project_quota(project: Project) -> Quota:
    """Return the project's limits; the defaults if none were set."""
    return getattr(project, "quota", None) or Quota(project=project)


def user_quota(user: User) -> UserQuota:
    """Return the limits over all of the user's projects; the defaults if none were set."""
    return getattr(user, "quota", None) or UserQuota(user=user)


def user_get(asker: User, username: str) -> User:
    """Return the user of that name: operators get anyone, others only themselves.

    Raises:
        NotFound: there is no such user, or the asker may not see them.
    """
    found = User.objects.filter(username=username).first()
    if found is None or (found.pk != asker.pk and not asker.operates()):
        raise NotFound("There is no such person, or it is not you.")
    return found


def accounts() -> QuerySet[User]:
    """Return all accounts of people with their memberships, by name."""
    memberships = Prefetch(
        "memberships", Membership.objects.select_related("project").order_by("project__name")
    )
    people = User.objects.exclude(username__startswith=SERVICE_ACCOUNTS)
    return people.prefetch_related(memberships).order_by("username")


def account_get(username: str) -> User:
    """Return the account of that name.

    Raises:
        NotFound: there is none.
    """
    found = accounts().filter(username=username).first()
    if found is None:
        raise NotFound(f"There is no user {username}.")
    return found


def invitations_of(project: Project) -> QuerySet[Invitation]:
    """Return the project's open invitations, which owners may withdraw. Declined ones are not marked."""
    return Invitation.objects.filter(project=project, expires_at__gt=timezone.now()).select_related(
        "project", "invited_by"
    )


def invitation_get(project: Project, invitation_id: int) -> Invitation:
    """Return one of the project's open invitations.

    Raises:
        NotFound: there is none.
    """
    found = invitations_of(project).filter(pk=invitation_id).first()
    if found is None:
        raise NotFound("There is no such invitation of this project.")
    return found


def invitations_for(user: User) -> QuerySet[Invitation]:
    """Return the invitations that the user may accept or decline."""
    waiting = Invitation.objects.filter(
        username=user.username, expires_at__gt=timezone.now(), declined_at__isnull=True
    )
    return waiting.select_related("project", "invited_by")


def invitation_for(user: User, invitation_id: int) -> Invitation:
    """Return one invitation that the user may accept or decline.

    Raises:
        NotFound: there is none, or it belongs to another user.
    """
    found = invitations_for(user).filter(pk=invitation_id).first()
    if found is None:
        raise NotFound("There is no such invitation for you.")
    return found


_TOKEN = PreparedRows(lambda digest: ApiToken.objects.select_related("user").filter(digest=digest).order_by())


def token_bearer(secret: str) -> ApiToken | None:
    """Return the token of that secret if it is valid now, and set it as its user's `acting_token`."""
    token = _TOKEN.first(token_digest(secret))
    if token is None or not token.usable(timezone.now()) or not token.user.is_active:
        return None
    token.user.acting_token = token
    return token


def tokens_of(user: User) -> QuerySet[ApiToken]:
    """Return the user's tokens that are not revoked, including expired ones."""
    return ApiToken.objects.filter(user=user, revoked_at__isnull=True)


def token_get(user: User, token_id: int) -> ApiToken:
    """Return one of the user's tokens.

    Raises:
        NotFound: there is none with that id.
    """
    token = tokens_of(user).filter(pk=token_id).first()
    if token is None:
        raise NotFound("There is no such token among yours.")
    return token
