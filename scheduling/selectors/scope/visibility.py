"""Who sees which job: the one place where pages and streams ask."""

from __future__ import annotations

from django.db.models import QuerySet

from projects.models import Project, Role, User
from scheduling.models import Job


def visible_projects(user: User) -> QuerySet[Project]:
    """Projects whose jobs `user` may see: all of them for an operator, else those with a membership."""
    projects = Project.objects.order_by("name")
    return (
        projects
        if user.operates()
        else projects.filter(pk__in=user.reachable_memberships().values("project"))
    )


def visible_project_ids(user: User) -> set[int] | None:
    """Their ids, or None for an operator, who sees all."""
    return None if user.operates() else set(user.reachable_memberships().values_list("project_id", flat=True))


def visible_jobs(user: User) -> QuerySet[Job]:
    """Jobs that `user` may see. A job outside does not exist for that person."""
    if user.operates():
        return Job.objects.all()
    return Job.objects.filter(project__in=user.reachable_memberships().values("project_id"))


def steerable_project_ids(user: User) -> set[int] | None:
    """Projects whose jobs `user` may cancel, pause or move; None for an operator, who may steer all."""
    if user.operates():
        return None
    roles = (Role.MEMBER, Role.OWNER)
    return set(user.reachable_memberships().filter(role__in=roles).values_list("project_id", flat=True))
