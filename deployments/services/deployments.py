"""Creating, changing and ending deployments."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from django.db import transaction
from django.utils import timezone

from deployments.choices import DeploymentState, ExpertHosting, ReplicaState, RolloutState
from deployments.models import Deployment, Rollout
from deployments.services.quotas import check_deployments, check_servers, lock_limits
from deployments.services.records import hint_pages, move, record
from deployments.services.rings import check_rings
from deployments.services.rollouts import Served, begin_rollout, wanted_rollout
from lending.models import InferenceCluster
from projects.errors import Conflict, InvalidRequest, NotFound
from projects.models import Project, User
from scheduling.services.rows.records import lock_cluster
from scheduling.services.rows.wakeups import wake

MAX_BATCH = 16
MAX_WAIT_SECONDS = 0.005
#: Fields that a change sets as they are.
SETTINGS = (
    "minimum_servers",
    "maximum_servers",
    "latency_target_seconds",
    "max_batch",
    "max_wait_seconds",
    "device_memory_bytes",
)
#: Settings that are fixed when a replica starts, so that a change replaces replicas.
REPLICA_SETTINGS = ("max_batch", "max_wait_seconds", "device_memory_bytes")


@dataclass(frozen=True, slots=True)
class DeploymentRequest:
    """A request for a deployment on ``minimum_servers`` to ``maximum_servers`` servers, initially
    ``servers``."""

    name: str
    minimum_servers: int = 1
    maximum_servers: int = 1
    servers: int | None = None
    latency_target_seconds: float | None = None
    max_batch: int = MAX_BATCH
    max_wait_seconds: float = MAX_WAIT_SECONDS
    device_memory_bytes: int | None = None
    inference_cluster: str = ""
    experts: str = ExpertHosting.WHOLE


@transaction.atomic
def deployment_create(
    *, project: Project, owner: User, served: Served, request: DeploymentRequest
) -> Deployment:
    """Store a deployment; `steering` starts its replicas. ``served`` was checked by `servable`.

    Raises:
        Conflict: another deployment of the project has that name, or the project is archived.
        InvalidRequest: the numbers of servers do not fit, or there is no such inference cluster.
        QuotaExceeded: the project, or its creator's projects in sum, have too many deployments, or too many
            servers in them.
    """
    inference_cluster = _find_inference_cluster(request.inference_cluster)
    wanted = request.minimum_servers if request.servers is None else request.servers
    _check_bounds(request.minimum_servers, wanted, request.maximum_servers)
    _check_group(request.experts, request.minimum_servers, request.maximum_servers)
    _check_memory(request.experts, request.device_memory_bytes)
    limited = lock_limits(project)
    lock_cluster(inference_cluster.cluster_id)
    others = Deployment.objects.filter(project=project).exclude(state=DeploymentState.STOPPED)
    if others.filter(name=request.name).exists():
        raise Conflict(
            f"Project {project.name} has a deployment called {request.name}. Choose another name, or change "
            "that one."
        )
    check_deployments(limited)
    check_servers(limited, request.maximum_servers)
    deployment = Deployment.objects.create(
        project=project,
        owner=owner,
        inference_cluster=inference_cluster,
        name=request.name,
        minimum_servers=request.minimum_servers,
        maximum_servers=request.maximum_servers,
        wanted_servers=wanted,
        wanted_reason="as requested",
        latency_target_seconds=request.latency_target_seconds,
        max_batch=request.max_batch,
        max_wait_seconds=request.max_wait_seconds,
        device_memory_bytes=request.device_memory_bytes,
        experts=request.experts,
    )
    record(deployment, "created", f"{owner.username} deployed {served}.", actor=owner.username)
    begin_rollout(deployment, served, owner)
    wake("steer_deployments")
    return deployment


def _find_inference_cluster(name: str) -> InferenceCluster:
    """Return the inference cluster of that name; without a name, the only one.

    Raises:
        InvalidRequest: there is none, or there are several and no name is given.
    """
    rows = InferenceCluster.objects.filter(name=name) if name else InferenceCluster.objects.all()
    found = list(rows.order_by("name")[:10])
    if len(found) == 1:
        return found[0]
    if name:
        text = f"There is no inference cluster called {name}."
    elif found:
        names = ", ".join(inference_cluster.name for inference_cluster in found)
        text = f"There are several inference clusters; name one of them: {names}."
    else:
        text = "There is no inference cluster to serve on; an operator has to create one first."
    raise InvalidRequest(text, errors={"inference_cluster": [text]})


def _check_bounds(least: int, wanted: int, most: int) -> None:
    if not 1 <= least <= wanted <= most:
        text = f"min is {least}, wanted {wanted}, max {most}; needed is 1 <= min <= wanted <= max."
        raise InvalidRequest(text, errors={"servers": [text]})


def _check_group(experts: str, least: int, most: int) -> None:
    """Raise InvalidRequest unless a group has a fixed number of at least 2 servers."""
    if experts != ExpertHosting.SPREAD:
        return
    if least != most:
        text = f"min is {least}, max {most}; servers that spread experts are a fixed number: set both alike."
        raise InvalidRequest(text, errors={"servers": [text]})
    if most < 2:
        text = "1 server has all experts; experts are spread over at least 2."
        raise InvalidRequest(text, errors={"servers": [text]})


def _check_memory(experts: str, device_memory_bytes: int | None) -> None:
    if experts == ExpertHosting.SPREAD and device_memory_bytes is not None:
        text = (
            f"device_memory_bytes is {device_memory_bytes}; servers that spread experts swap these in as "
            "they need them, so leave it out."
        )
        raise InvalidRequest(text, errors={"device_memory_bytes": [text]})


def _lock(deployment: Deployment) -> Deployment:
    """Return the current row, under the cluster's row.

    Raises:
        Conflict: it drains or has stopped.
    """
    lock_cluster(deployment.inference_cluster.cluster_id)
    current = Deployment.objects.select_related("inference_cluster", "project").get(pk=deployment.pk)
    if current.is_ending():
        raise Conflict(f"Deployment {current.pk} is {current.state}; it cannot be changed any more.")
    return current


@transaction.atomic
def deployment_change(
    *, deployment: Deployment, actor: User, changes: Mapping[str, Any], served: Served | None = None
) -> Deployment:
    """Change bounds, target or batches. A new ``served`` or new `REPLICA_SETTINGS` replace one replica at a
    time. A group of servers is replaced as a whole, also for another number of servers.

    ``changes``: fields of `SETTINGS`, and ``servers``: the number wanted now.

    Raises:
        Conflict: it drains or has stopped, or an archived project requests more servers.
        InvalidRequest: the numbers of servers do not fit, or the layers that stream are too slow for a new
            latency target.
        QuotaExceeded: the project, or its creator's projects in sum, would have too many servers in their
            deployments.
    """
    # Lock the rows of limits before the cluster's, as in a submission.
    limited = lock_limits(deployment.project) if "maximum_servers" in changes else None
    current = _lock(deployment)
    settings = {name: changes[name] for name in SETTINGS if name in changes}
    least = settings.get("minimum_servers", current.minimum_servers)
    most = settings.get("maximum_servers", current.maximum_servers)
    wanted = changes.get("servers", min(most, max(least, current.wanted_servers)))
    _check_bounds(least, wanted, most)
    _check_group(current.experts, least, most)
    _check_memory(current.experts, settings.get("device_memory_bytes"))
    is_regrouped = current.experts == ExpertHosting.SPREAD and wanted != current.wanted_servers
    if limited is not None and most > current.maximum_servers:
        check_servers(limited, most, but=current)
    are_replicas_changed = any(
        name in settings and settings[name] != getattr(current, name) for name in REPLICA_SETTINGS
    )
    if "latency_target_seconds" in settings and served is None and not are_replicas_changed:
        check_rings(current, settings["latency_target_seconds"])
    for name, value in settings.items():
        setattr(current, name, value)
    if wanted != current.wanted_servers:
        current.wanted_servers, current.wanted_reason = wanted, f"as {actor.username} requested"
    if current.latency_target_seconds is None:
        current.slow_since = None
    current.save(update_fields=[*settings, "wanted_servers", "wanted_reason", "slow_since"])
    if changes:
        words = ", ".join(f"{name} = {value}" for name, value in changes.items())
        record(current, "changed", f"{actor.username} set {words}.", actor=actor.username)
    if served is None and (are_replicas_changed or is_regrouped):
        served = Served.of_rollout(_newest_rollout(current))
    if served is not None:
        begin_rollout(current, served, actor)
    hint_pages(current)
    wake("steer_deployments")
    return current


@transaction.atomic
def deployment_rollback(*, deployment: Deployment, actor: User) -> Deployment:
    """Roll back to the previous generation that served, replacing one replica at a time.

    A new generation that has not served yet is withdrawn, and the current one continues to serve.

    Raises:
        Conflict: there is no earlier generation that served, or the deployment drains or has stopped.
    """
    current = _lock(deployment)
    wanted = wanted_rollout(current)
    earlier = current.rollouts.filter(served_at__isnull=False).order_by("-number")
    if wanted is not None:
        earlier = earlier.filter(number__lt=wanted.number)
    target = earlier.select_related("job", "function_version__function").first()
    if target is None:
        raise Conflict(f"Deployment {current.pk} has no earlier generation that served.")
    if wanted is not None and wanted.state == RolloutState.COMING and target.state == RolloutState.CURRENT:
        wanted.state = RolloutState.RETIRED
        wanted.save(update_fields=["state"])
        text = f"{actor.username} withdrew generation {wanted.number}; generation {target.number} serves on."
        record(current, "rollback", text, actor=actor.username)
    else:
        text = f"{actor.username} rolled back to what generation {target.number} served."
        record(current, "rollback", text, actor=actor.username)
        begin_rollout(current, Served.of_rollout(target), actor)
    wake("steer_deployments")
    return current


def _newest_rollout(deployment: Deployment) -> Rollout:
    rollouts = deployment.rollouts.select_related("job", "function_version__function")
    return wanted_rollout(deployment) or rollouts.latest("number")


@transaction.atomic
def deployment_drain(*, deployment: Deployment, actor: User, server_name: str) -> Deployment:
    """Start a replica on another server, and then drain the one on `server_name`.

    Raises:
        Conflict: the deployment drains or has stopped.
        NotFound: it has no replica on a server of that name.
    """
    current = _lock(deployment)
    replicas = current.replicas.filter(
        server__name=server_name, state__in=[ReplicaState.STARTING, ReplicaState.SERVING]
    )
    if not replicas.update(leaving=True):
        raise NotFound(f"Deployment {current.pk} has no replica on a server called {server_name}.")
    record(current, "drain", f"{actor.username} drains {server_name}.", actor=actor.username)
    wake("steer_deployments")
    return current


@transaction.atomic
def deployment_delete(*, deployment: Deployment, actor: User) -> Deployment:
    """Drain all replicas and end the deployment. Do nothing if it is already ending."""
    lock_cluster(deployment.inference_cluster.cluster_id)
    current = Deployment.objects.select_related("inference_cluster", "project").get(pk=deployment.pk)
    if not current.is_ending():
        move(current, DeploymentState.DRAINING, f"{actor.username} deleted it.", actor=actor.username)
        current.reason = ""
        current.save(update_fields=["reason"])
        current.tokens.filter(revoked_at__isnull=True).update(revoked_at=timezone.now())
        wake("steer_deployments")
    return current
