"""What jobs and functions have to say when a project is closed."""

from __future__ import annotations

from typing import Any

from projects.errors import Conflict
from projects.models import Project
from scheduling.choices import TERMINAL_STATES
from scheduling.models import Bundle, Function
from scheduling.services.requests.environment_requests import release_environments


def close_project(project: Project, deleting: bool, **_: Any) -> None:
    """Refuse while there is work; take the functions of a project that is deleted away, and code that nobody
    else stores.

    Raises:
        Conflict: jobs are not finished, or there are any and the project is to be deleted.
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
