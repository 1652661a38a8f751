"""Conditions of deployments for closing a project."""

from __future__ import annotations

from typing import Any

from deployments.choices import DeploymentState
from deployments.models import Deployment
from projects.errors import Conflict
from projects.models import Project


def close_project(project: Project, deleting: bool, **_: Any) -> None:
    """Refuse to close a project with deployments that have not stopped, and to delete one that ever had any.

    Raises:
        Conflict: the project has such deployments.
    """
    found = Deployment.objects.filter(project=project)
    unfinished = found.exclude(state=DeploymentState.STOPPED).count()
    if unfinished:
        raise Conflict(f"{_count(unfinished)} of {project.name} have not stopped; delete them first.")
    if deleting and (count := found.count()):
        raise Conflict(f"{project.name} has {_count(count)} in its history; archive it instead.")


def _count(number: int) -> str:
    return f"{number} deployment{'' if number == 1 else 's'}"
