"""What deployments demand before a project is closed."""

from __future__ import annotations

from typing import Any

from deployments.choices import DeploymentState
from deployments.models import Deployment
from projects.errors import Conflict
from projects.models import Project


def close_project(project: Project, deleting: bool, **_: Any) -> None:
    """Refuse while the project has deployments that have not stopped, and to delete one that had any.

    Raises:
        Conflict: it has.
    """
    found = Deployment.objects.filter(project=project)
    unfinished = found.exclude(state=DeploymentState.STOPPED).count()
    if unfinished:
        raise Conflict(f"{_count(unfinished)} of {project.name} have not stopped; delete them first.")
    if deleting and (count := found.count()):
        raise Conflict(f"{project.name} has {_count(count)} in its history; archive it instead.")


def _count(number: int) -> str:
    return f"{number} deployment{'' if number == 1 else 's'}"
