"""Archiving, restoring and deleting projects.

Other rooms say through :data:`project_closing` what stands against it, and clean up after themselves.
"""

from __future__ import annotations

from django.db import transaction
from django.db.models import QuerySet
from django.dispatch import Signal
from django.utils import timezone

from projects.access import require_role
from projects.errors import Conflict
from projects.models import Project, Role, User
from projects.prepared import PreparedRows

#: Sent in the transaction, with the project's row locked: ``project`` and ``deleting``. A receiver that
#: raises stops it.
project_closing = Signal()


def lock_open_project(project: Project, *, and_its_creator: bool = False) -> Project:
    """The project's row with its quota, locked until the transaction ends: nothing new while it is being
    closed. With ``and_its_creator`` also the creator's row with their quota, if the project has a creator.

    Raises:
        Conflict: it is archived.
    """
    locked = _LOCKED_WITH_CREATOR.first(project.pk) if and_its_creator else None
    if locked is None:
        rows = Project.objects.select_for_update(no_key=True, of=("self",)).select_related("quota")
        locked = rows.get(pk=project.pk)
    if locked.archived_at is not None:
        raise Conflict(f"Project {project.name} is archived and takes nothing new; an owner can restore it.")
    return locked


def _with_creator(project_id: int) -> QuerySet[Project]:
    """Both rows, locked, the project's first; none where it has no creator by now."""
    rows = Project.objects.select_for_update(no_key=True, of=("self", "created_by"))
    # PostgreSQL locks no row that an outer join may leave out; a condition on the creator makes it an inner
    # one.
    with_creator = rows.filter(pk=project_id, created_by__username__isnull=False)
    return with_creator.select_related("quota", "created_by__quota").order_by()


_LOCKED_WITH_CREATOR = PreparedRows(_with_creator)


@transaction.atomic
def project_archive(*, project: Project, actor: User) -> Project:
    """Keep the project to be looked at: no new jobs, functions or members. It still counts among its
    creator's.

    Raises:
        NotAllowed: the actor does not own it.
        Conflict: jobs of it are not finished.
    """
    require_role(actor, project, Role.OWNER)
    lock_open_project(project)
    project_closing.send(Project, project=project, deleting=False)
    project.archived_at = timezone.now()
    project.save(update_fields=["archived_at"])
    return project


@transaction.atomic
def project_restore(*, project: Project, actor: User) -> Project:
    """Open an archived project again.

    Raises:
        NotAllowed: the actor does not own it.
        Conflict: it is open.
    """
    require_role(actor, project, Role.OWNER)
    locked = Project.objects.select_for_update(no_key=True).get(pk=project.pk)
    if locked.archived_at is None:
        raise Conflict(f"Project {project.name} is not archived.")
    project.archived_at = None
    project.save(update_fields=["archived_at"])
    return project


@transaction.atomic
def project_delete(*, project: Project, actor: User) -> None:
    """Delete a project in which no job was ever submitted, with its functions. Others are archived.

    Raises:
        NotAllowed: the actor does not own it.
        Conflict: there are jobs, which are the cluster's history.
    """
    require_role(actor, project, Role.OWNER)
    locked = Project.objects.select_for_update().get(pk=project.pk)
    project_closing.send(Project, project=locked, deleting=True)
    locked.delete()
