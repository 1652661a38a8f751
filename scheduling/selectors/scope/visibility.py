"""Which jobs a person may see: the only implementation, used by pages and streams."""

from __future__ import annotations

from django.db.models import QuerySet

from projects.models import Project, Role, User
from scheduling.models import Job


def visible_projects(user: User) -> QuerySet[Project]:
    """Return the projects whose jobs `user` may see: all for an operator, else those with a membership."""
    projects = Project.objects.order_by("name")
    return (
        projects
        if user.operates()
        else projects.filter(pk__in=user.reachable_memberships().values("project"))
    )


def visible_project_ids(user: User) -> set[int] | None:
    """Return their ids, or None for an operator, who sees all."""
    return None if user.operates() else set(user.reachable_memberships().values_list("project_id", flat=True))


def visible_jobs(user: User) -> QuerySet[Job]:
    """Return the jobs that `user` may see."""
    if user.operates():
        return Job.objects.all()
    return Job.objects.filter(project__in=user.reachable_memberships().values("project_id"))


def steerable_project_ids(user: User) -> set[int] | None:
    """Return ids of projects whose jobs `user` may cancel, pause or move; None for an operator, who may do
    so for all."""
    if user.operates():
        return None
    roles = (Role.MEMBER, Role.OWNER)
    return set(user.reachable_memberships().filter(role__in=roles).values_list("project_id", flat=True))
