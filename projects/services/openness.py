"""Archiving, restoring and deleting projects.

Other rooms receive :data:`project_closing`, raise what forbids closing, and delete their own data.
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
#: raises prevents the closing.
project_closing = Signal()


def lock_open_project(project: Project, *, and_its_creator: bool = False) -> Project:
    """Return the project's row with its quota, locked until the transaction ends, so that it is not closed
    meanwhile.

    With ``and_its_creator``, also lock and load the creator's row and quota, if the project has a creator.

    Raises:
        Conflict: the project is archived.
    """
    locked = _LOCKED_WITH_CREATOR.first(project.pk) if and_its_creator else None
    if locked is None:
        rows = Project.objects.select_for_update(no_key=True, of=("self",)).select_related("quota")
        locked = rows.get(pk=project.pk)
    if locked.archived_at is not None:
        raise Conflict(f"Project {project.name} is archived and takes nothing new; an owner can restore it.")
    return locked


def _with_creator(project_id: int) -> QuerySet[Project]:
    """Return both rows, locked, the project's first; nothing if the creator's account is gone."""
    rows = Project.objects.select_for_update(no_key=True, of=("self", "created_by"))
    # PostgreSQL cannot lock the nullable side of an outer join; a condition on the creator makes it an inner
    # join.
    with_creator = rows.filter(pk=project_id, created_by__username__isnull=False)
    return with_creator.select_related("quota", "created_by__quota").order_by()


_LOCKED_WITH_CREATOR = PreparedRows(_with_creator)


@transaction.atomic
def project_archive(*, project: Project, actor: User) -> Project:
    """Archive the project: no new jobs, functions or members. It still counts among its creator's projects.

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
    """Reopen an archived project.

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
    """Delete a project without jobs, with its functions. Projects with jobs can only be archived.

    Raises:
        NotAllowed: the actor does not own it.
        Conflict: there are jobs, which are the cluster's history.
    """
    require_role(actor, project, Role.OWNER)
    locked = Project.objects.select_for_update().get(pk=project.pk)
    project_closing.send(Project, project=locked, deleting=True)
    locked.delete()
