"""Starts, drains and replaces replicas, step by step, until each deployment has its wanted replicas.

All state is read from rows, so a pass may be repeated, late or missing. It runs under the cluster's row, as
lending does: a server cannot be lent while it gets a replica.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.utils import timezone

from cluster.models import Cluster
from deployments.choices import DeploymentState, ExpertHosting, ReplicaState
from deployments.core.places import choose_place, choose_to_drain
from deployments.core.replacing import Standing, next_steps
from deployments.models import Deployment, Replica, Rollout
from deployments.services.groups import end_group, steer_group
from deployments.services.health import update_state
from deployments.services.homes import Homes, find_homes, has_to_leave
from deployments.services.records import hint_pages, move, set_reason
from deployments.services.replicas import (
    PLACE_IS_FREED,
    drain_replica,
    is_one_ending,
    start_replica,
    stop_replica,
)
from deployments.services.rollouts import replica_failed, wanted_rollout
from lending.models import InferenceCluster
from scheduling.core.question.quantities import duration_text
from scheduling.services.rows.records import lock_cluster

log = structlog.get_logger(__name__)

#: A worker drains for at most 30 s (docs/protocols.md 2.12); after this time it is killed.
LONGEST_DRAIN_SECONDS = 90.0
STEERING_FAILED = "An error in the control plane left it as it is; the control plane's log has the details."


def steer_deployments() -> None:
    """Take the next steps of every deployment that has not stopped."""
    unfinished = Deployment.objects.exclude(state=DeploymentState.STOPPED)
    for inference_cluster in InferenceCluster.objects.filter(
        pk__in=unfinished.values("inference_cluster")
    ).order_by("pk"):
        with transaction.atomic():
            cluster = lock_cluster(inference_cluster.cluster_id)
            _steer_cluster(inference_cluster, cluster, timezone.now())


def _steer_cluster(inference_cluster: InferenceCluster, cluster: Cluster, now: datetime) -> None:
    homes = find_homes(inference_cluster, now)
    unfinished = inference_cluster.deployments.exclude(state=DeploymentState.STOPPED)
    for deployment in unfinished.order_by("created_at", "id"):
        try:
            with transaction.atomic():
                _steer(deployment, homes, cluster, now)
        except Exception:
            # Continue with the other deployments.
            log.exception("a deployment could not be steered", deployment=deployment.pk)
            set_reason(Deployment.objects.get(pk=deployment.pk), STEERING_FAILED)


def _steer(deployment: Deployment, homes: Homes, cluster: Cluster, now: datetime) -> None:
    replicas = list(
        deployment.replicas.exclude(state=ReplicaState.GONE)
        .select_related("server", "rollout", "deployment__inference_cluster")
        .defer("log", "counts", "counted", "experts")
    )
    _end_overdue(replicas, cluster, now)
    if deployment.is_ending():
        for replica in replicas:
            drain_replica(replica, now)
        if not replicas:
            move(deployment, DeploymentState.STOPPED, "All of its replicas have ended.")
        return
    rollout = wanted_rollout(deployment)
    if deployment.experts == ExpertHosting.SPREAD:
        blocked = steer_group(deployment, rollout, replicas, homes, now)
        update_state(deployment, rollout, blocked, now)
        return
    standings = [
        Standing(
            replica.key,
            is_newest=rollout is not None
            and replica.rollout_id == rollout.pk
            and not has_to_leave(replica, homes),
            is_serving=replica.state == ReplicaState.SERVING,
        )
        for replica in replicas
        if replica.state in (ReplicaState.STARTING, ReplicaState.SERVING)
    ]
    wanted = 0 if rollout is None else deployment.wanted_servers
    steps = next_steps(standings, wanted, homes.count_places(deployment.pk))
    by_key = {replica.key: replica for replica in replicas}
    for key in (*steps.drain, *_choose_surplus(standings, steps.surplus, by_key)):
        drain_replica(by_key[key], now)
    blocked = PLACE_IS_FREED if steps.blocked and is_one_ending(replicas) else steps.blocked
    if rollout is not None and steps.start:
        if now < rollout.not_before:
            blocked = f"A replica of generation {rollout.number} failed; another starts soon."
        else:
            blocked = _start(deployment, rollout, steps.start, homes) or blocked
    update_state(deployment, rollout, blocked, now)


def _choose_surplus(standings: Sequence[Standing], count: int, by_key: dict[str, Replica]) -> list[str]:
    """Return which serving replicas of the newest generation drain because there are too many."""
    if not count:
        return []
    left = [
        (standing.key, by_key[standing.key].server_id)
        for standing in standings
        if standing.is_newest and standing.is_serving
    ]
    others: dict[int, int] = {}
    present = Replica.objects.filter(server__in={server for _, server in left})
    for server in present.exclude(state=ReplicaState.GONE).values_list("server_id", flat=True):
        others[server] = others.get(server, 0) + 1
    chosen: list[str] = []
    for _ in range(count):
        key = choose_to_drain(left, others)
        chosen.append(key)
        left = [row for row in left if row[0] != key]
    return chosen


def _start(deployment: Deployment, rollout: Rollout, count: int, homes: Homes) -> str:
    """Start replicas; return why some could not start, or an empty text."""
    for _ in range(count):
        place = choose_place(deployment.pk, homes.homes.values())
        if place is None:
            return "There is no place for more replicas."
        server, gpu = place
        started = start_replica(
            deployment=deployment, rollout=rollout, server=homes.gpus[gpu].server, gpu=homes.gpus[gpu]
        )
        homes.take(server, gpu, deployment.pk)
        if started is None:
            return f"Server {homes.gpus[gpu].server.name} has no free port."
        hint_pages(deployment)
    return ""


def _end_overdue(replicas: Sequence[Replica], cluster: Cluster, now: datetime) -> None:
    """End replicas that take too long to start or to drain."""
    start_by = now - timedelta(seconds=cluster.prepare_timeout_seconds)
    drain_by = now - timedelta(seconds=LONGEST_DRAIN_SECONDS)
    for replica in replicas:
        if replica.state == ReplicaState.STARTING and replica.created_at < start_by:
            reason = f"it did not serve within {duration_text(cluster.prepare_timeout_seconds)}."
            stop_replica(replica, reason)
            replica_failed(replica, reason, now)
            end_group(replica, reason)
        elif replica.state == ReplicaState.DRAINING and (replica.draining_at or now) < drain_by:
            stop_replica(replica)
