"""Limits of projects on deployments: their number, and the servers to which they may grow together."""

from __future__ import annotations

from django.db.models import Sum

from deployments.choices import ENDING_STATES, DeploymentState
from deployments.models import Deployment
from projects.errors import QuotaExceeded
from projects.models import Project
from projects.services.openness import lock_open_project
from scheduling.services.verdicts.quotas import limits_on


def lock_limits(project: Project) -> Project:
    """Return the project with its limits; its row and its creator's are locked until the transaction ends.

    Raises:
        Conflict: the project is archived.
    """
    return lock_open_project(project, and_its_creator=True)


def check_deployments(project: Project) -> None:
    """Check that one more deployment is allowed. The caller holds the rows of the limits.

    Raises:
        QuotaExceeded: the limit is reached.
    """
    for limit in limits_on(project, "deployments"):
        found = Deployment.objects.filter(project__in=limit.project_ids)
        count = found.exclude(state=DeploymentState.STOPPED).count()
        if count >= limit.amount:
            raise QuotaExceeded(
                f"{limit.whose}: at most {limit.amount} deployments are allowed, and there are {count}. "
                "Delete one, or ask an operator for more."
            )


def check_servers(project: Project, servers: int, but: Deployment | None = None) -> None:
    """Check that a deployment may grow to `servers` servers. The caller holds the rows of the limits.

    Args:
        but: the deployment that grows, whose current bound does not count.

    Raises:
        QuotaExceeded: all deployments together could exceed the limit.
    """
    for limit in limits_on(project, "deployment_servers"):
        others = Deployment.objects.filter(project__in=limit.project_ids).exclude(state__in=ENDING_STATES)
        if but is not None:
            others = others.exclude(pk=but.pk)
        used = others.aggregate(servers=Sum("maximum_servers", default=0))["servers"]
        if used + servers > limit.amount:
            raise QuotaExceeded(
                f"{limit.whose}: deployments may use at most {limit.amount} servers together. The others may "
                f"use {used}, and this one asks for {servers}. Lower `servers.max`, or ask an operator for "
                "more."
            )
