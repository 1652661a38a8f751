"""Closes a project as far as its jobs and functions are concerned."""

from __future__ import annotations

from typing import Any

from projects.errors import Conflict
from projects.models import Project
from scheduling.choices import TERMINAL_STATES
from scheduling.models import Bundle, Function
from scheduling.services.requests.environment_requests import release_environments


def close_project(project: Project, deleting: bool, **_: Any) -> None:
    """Refuse if there is work. Delete the functions of a project that is deleted, and bundles that no other
    project stores.

    Raises:
        Conflict: jobs are not finished, or the project is to be deleted and has jobs.
    """
    unfinished = project.jobs.exclude(state__in=TERMINAL_STATES).count()
    if unfinished:
        raise Conflict(f"{unfinished} jobs of {project.name} are not finished; cancel them or wait.")
    if not deleting:
        return
    jobs = project.jobs.count()
    if jobs:
        raise Conflict(f"{project.name} has {jobs} jobs, which are kept as history; archive it instead.")
    digests = set(
        Bundle.objects.filter(functionversion__function__project=project).values_list("digest", flat=True)
    )
    release_environments(project)
    Function.objects.filter(project=project).delete()
    Bundle.objects.filter(digest__in=digests, functionversion__isnull=True).delete()
