"""Reading deployments: those that a user may see, their replicas and history."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from django.db.models import Prefetch, QuerySet

from deployments.choices import DeploymentState, ExpertHosting, ReplicaState
from deployments.models import (
    Deployment,
    DeploymentEvent,
    DeploymentSample,
    DeploymentToken,
    Replica,
    Rollout,
)
from projects.access import require_role, role_in
from projects.errors import NotFound
from projects.models import Role, User

#: Large fields of replicas.
REPORTED = ("log", "counts", "counted", "experts")
MOST_LOGS = 50


def deployments_visible_to(user: User) -> QuerySet[Deployment]:
    """Return deployments of the person's projects; an operator sees all."""
    present = Replica.objects.exclude(state=ReplicaState.GONE).select_related("server", "gpu", "rollout")
    rollouts = Rollout.objects.select_related("function_version__function").defer("function_version__files")
    found = Deployment.objects.select_related("project", "owner", "inference_cluster").prefetch_related(
        Prefetch("replicas", present.defer(*REPORTED), to_attr="present_replicas"),
        Prefetch("rollouts", rollouts),
    )
    if user.operates():
        return found
    return found.filter(project__in=user.reachable_memberships().values("project_id"))


def present_replicas(deployment: Deployment) -> list[Replica]:
    """Return its replicas that are not gone, of a deployment read by `deployments_visible_to`."""
    found: list[Replica] = getattr(deployment, "present_replicas", [])
    return found


def deployment_get(user: User, deployment_id: str) -> Deployment:
    """Return one deployment.

    Raises:
        NotFound: there is none, or the person may not see it.
    """
    found = deployments_visible_to(user).filter(pk=deployment_id).first()
    if found is None:
        raise NotFound(f"There is no deployment {deployment_id} among yours.")
    return found


def deployment_to_change(user: User, deployment_id: str) -> Deployment:
    """Return one deployment that the person may change.

    Raises:
        NotFound: the person may not see it. NotAllowed: the person may only look at it.
    """
    found = deployment_get(user, deployment_id)
    require_role(user, found.project, Role.MEMBER)
    return found


def may_change(user: User, deployment: Deployment) -> bool:
    """Return whether the person may change it and send requests to it."""
    return user.operates() or role_in(user, deployment.project) in (Role.MEMBER, Role.OWNER)


def deployments_matching(found: QuerySet[Deployment], filters: Mapping[str, Any]) -> QuerySet[Deployment]:
    """Return deployments that match every given filter."""
    lookups = {"project": "project__name", "name": "name", "state": "state__in", "job": "rollouts__job"}
    for name, lookup in lookups.items():
        if filters.get(name):
            found = found.filter(**{lookup: filters[name]})
    return found.distinct() if filters.get("job") else found


def newest_deployments(user: User, most: int) -> list[Deployment]:
    """Return the newest deployments that the person may see."""
    return list(deployments_visible_to(user).order_by("-created_at", "-pk")[:most])


def deployments_spread() -> QuerySet[Deployment]:
    """Return deployments, not stopped, whose experts are spread over a group of servers."""
    spread = Deployment.objects.filter(experts=ExpertHosting.SPREAD).exclude(state=DeploymentState.STOPPED)
    return spread.select_related("project").order_by("pk")


def rollouts_of(deployment: Deployment) -> list[Rollout]:
    """Return the rollouts, oldest first, of a deployment read by `deployments_visible_to`."""
    return list(deployment.rollouts.all())


def deployment_events(deployment: Deployment) -> QuerySet[DeploymentEvent]:
    """Return its history, newest first."""
    return deployment.events.order_by("-id")


def deployment_samples(deployment: Deployment) -> QuerySet[DeploymentSample]:
    """Return its samples of answered requests."""
    return deployment.samples.all()


def newest_replicas(deployment: Deployment) -> QuerySet[Replica]:
    """Return its newest replicas, including those that are gone, with their logs."""
    return deployment.replicas.select_related("server").order_by("-created_at", "key")[:MOST_LOGS]


def deployment_tokens(deployment: Deployment) -> QuerySet[DeploymentToken]:
    """Return its tokens with the people who made them."""
    return deployment.tokens.select_related("created_by")


def deployment_token_get(deployment: Deployment, token_id: int) -> DeploymentToken:
    """Return one of its tokens. Raises NotFound if there is none."""
    token = deployment.tokens.filter(pk=token_id).first()
    if token is None:
        raise NotFound(f"Deployment {deployment.pk} has no token {token_id}.")
    return token
