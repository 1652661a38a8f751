"""Deployments as the scheduler of their inference cluster (Lyra sections 3.3 and 3.6): idle servers are
offered for loan, and asked back when deployments need them.

These are the same orders, by the same lending rule, as those of an external scheduler. Usage and forecast
decide period by period. A replica that finds no place asks its server back at once.
"""

from __future__ import annotations

import uuid
from dataclasses import dataclass
from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.utils import timezone

from cluster.choices import LendingState, ServerState
from deployments.choices import DeploymentState, ReplicaState
from deployments.core.places import Packing, choose_to_vacate, pack
from deployments.models import Deployment, Replica
from deployments.services.homes import find_homes
from deployments.services.records import record
from deployments.services.rollouts import wanted_rollout
from deployments.services.usage import gpus_per_server, report_usage
from lending.choices import LoanState, OrderSource, ReclaimState, ScheduledBy
from lending.models import InferenceCluster, LoanOrder, UsageForecast, UsageSample
from lending.selectors.inference_clusters import recent_peak, settled_servers
from lending.services.loans import NotLent, loan_order_create
from lending.services.occupied import find_occupied
from lending.services.reclaiming import reclaim_confirm, reclaim_order_create, returning_takes
from lending.services.usage import STALE_PERIODS, servers_asked_back, servers_to_ask_back
from scheduling.services.rows.records import lock_cluster
from scheduling.services.rows.wakeups import wake

log = structlog.get_logger(__name__)

#: Creator of the deployments' orders.
SCHEDULER = "deployments"
#: States of replicas that keep their place.
_STAYING_STATES = (ReplicaState.STARTING, ReplicaState.SERVING)
_NEEDING_STATES = (DeploymentState.PREPARING, DeploymentState.READY, DeploymentState.DEGRADED)


def schedule_inference_clusters() -> None:
    """Take one step for every inference cluster that its deployments schedule."""
    scheduled = InferenceCluster.objects.filter(scheduled_by=ScheduledBy.DEPLOYMENTS)
    for inference_cluster in scheduled.order_by("pk"):
        try:
            _schedule(inference_cluster, timezone.now())
        except Exception:
            # Continue with the other inference clusters.
            log.exception(
                "an inference cluster could not be scheduled", inference_cluster=inference_cluster.name
            )


@transaction.atomic
def _schedule(inference_cluster: InferenceCluster, now: datetime) -> None:
    """Confirm servers that are back, report usage, and ask servers back or offer some.

    It runs under the cluster's row, under which replicas are placed and orders carried out.
    """
    lock_cluster(inference_cluster.cluster_id)
    inference_cluster.refresh_from_db()
    for order in inference_cluster.reclaim_orders.filter(state=ReclaimState.RETURNED):
        names = order.servers.values_list("server__name", flat=True)
        reclaim_confirm(order=order, server_names=list(names))
    report_usage(inference_cluster, now)
    standing = _Standing.read(inference_cluster, now)
    count = _count_to_ask_back(inference_cluster, standing, now)
    if count:
        _ask_back(inference_cluster, count, now)
    elif not standing.packing.lacking:
        _offer(inference_cluster, standing, now)


@dataclass(frozen=True, slots=True)
class _Standing:
    """The current situation of an inference cluster.

    ``usage``: the newest sample, None if it is out of date; ``forecast`` is for the period after it.
    ``offered``: servers that are offered and not lent yet. ``packing``: places for missing replicas.
    """

    usage: UsageSample | None
    forecast: UsageForecast | None
    offered: int
    packing: Packing

    @classmethod
    def read(cls, inference_cluster: InferenceCluster, now: datetime) -> _Standing:
        period = timedelta(seconds=inference_cluster.period_seconds)
        usage = inference_cluster.usage_samples.order_by("-period_ends_at").first()
        if usage is not None and now - usage.period_ends_at > STALE_PERIODS * period:
            usage = None
        forecast = None
        if usage is not None:
            following = usage.period_ends_at + period
            forecast = inference_cluster.forecasts.filter(period_ends_at=following).first()
        offers = LoanOrder.objects.filter(
            inference_cluster=inference_cluster, state=LoanState.PENDING, servers__isnull=False
        )
        offered = offers.values("servers").distinct().count()
        return cls(usage, forecast, offered, _pack_missing(inference_cluster, now))


def _pack_missing(inference_cluster: InferenceCluster, now: datetime) -> Packing:
    """Place the missing replicas of deployments. Draining replicas take no place: they end before a server
    could be back."""
    homes = find_homes(inference_cluster, now, _STAYING_STATES)
    deployments = inference_cluster.deployments.filter(state__in=_NEEDING_STATES)
    missing = {
        deployment.pk: _count_missing(deployment, set(homes.homes))
        for deployment in deployments.order_by("created_at", "id")
    }
    return pack(missing, homes.homes.values(), gpus_per_server(inference_cluster))


def _count_missing(deployment: Deployment, homes: set[int]) -> int:
    """Return how many replicas have no server yet."""
    rollout = wanted_rollout(deployment)
    if rollout is None:
        return 0
    staying = [
        replica
        for replica in deployment.replicas.filter(state__in=_STAYING_STATES, leaving=False).select_related(
            "server"
        )
        # A server that is up but not among the homes takes no new replicas, and its replicas leave it.
        if replica.server_id in homes or replica.server.state != ServerState.UP
    ]
    missing = max(0, deployment.wanted_servers - len(staying))
    is_replaced = bool(staying) and all(replica.rollout_id != rollout.pk for replica in staying)
    if is_replaced and len(staying) == 1:
        # The only replica drains once another serves beside it.
        return max(1, missing)
    return missing


def _count_to_ask_back(inference_cluster: InferenceCluster, standing: _Standing, now: datetime) -> int:
    """Return how many servers to ask back: those that replicas lack now, or more if the lending rule says
    so."""
    lent = inference_cluster.servers_in(LendingState.ON_LOAN)
    asked = servers_asked_back(inference_cluster)
    coming = asked + inference_cluster.servers_in(LendingState.RECLAIMING)
    obtainable = max(0, lent + standing.offered - asked)
    by_rule = 0
    if standing.usage is not None:
        expected = None if standing.forecast is None else standing.forecast.usage
        by_rule = servers_to_ask_back(
            inference_cluster, standing.usage.usage, expected, now, offered=standing.offered
        )
    return min(obtainable, max(standing.packing.lacking - coming, by_rule))


def _ask_back(inference_cluster: InferenceCluster, count: int, now: datetime) -> None:
    """Ask servers back within the time that a return may take, so that the order begins at once."""
    reclaim_order_create(
        inference_cluster=inference_cluster,
        order_id=uuid.uuid4(),
        count=count,
        wanted_by=now + returning_takes(inference_cluster.cluster),
        source=OrderSource.SCHEDULER,
        created_by=SCHEDULER,
    )


def _offer(inference_cluster: InferenceCluster, standing: _Standing, now: datetime) -> None:
    """Offer as many idle servers as the lending rule spares; vacate a server if too few are idle.

    Nothing is offered before the coming period is forecast.
    """
    count = _count_to_lend(inference_cluster, standing, now)
    if not count:
        return
    occupied = find_occupied(standing.packing.idle)
    idle = [server for server in standing.packing.idle if server not in occupied]
    reserve = inference_cluster.rule().reserve
    # Replicas start on the servers with the lowest ids.
    offered = idle[reserve:][::-1][:count]
    if not offered:
        _vacate(inference_cluster, len(idle), reserve, now)
        return
    names = inference_cluster.servers.filter(pk__in=offered).values_list("name", flat=True)
    try:
        loan_order_create(
            inference_cluster=inference_cluster,
            order_id=uuid.uuid4(),
            server_names=list(names),
            source=OrderSource.SCHEDULER,
            created_by=SCHEDULER,
        )
    except NotLent as error:
        log.info("no offer", inference_cluster=inference_cluster.name, reason=error.detail)


def _count_to_lend(inference_cluster: InferenceCluster, standing: _Standing, now: datetime) -> int:
    if not inference_cluster.lending or standing.usage is None or standing.forecast is None:
        return 0
    returning = inference_cluster.servers_in(LendingState.RECLAIMING)
    away = inference_cluster.servers_in(LendingState.ON_LOAN) + returning + standing.offered
    decision = inference_cluster.rule().decide(
        standing.usage.usage,
        standing.forecast.usage,
        on_loan=away,
        being_returned=min(away, returning + servers_asked_back(inference_cluster)),
        recent_peak=recent_peak(inference_cluster),
        settled=settled_servers(inference_cluster, now),
    )
    return decision.lend


def _vacate(inference_cluster: InferenceCluster, idle: int, reserve: int, now: datetime) -> None:
    """Move the replicas of one server to other serving servers, so that it can be lent. A replica drains once
    another serves in its place.

    Do nothing while replicas start, drain or are replaced.
    """
    if idle < reserve:
        return
    replicas = list(
        Replica.objects.filter(deployment__inference_cluster=inference_cluster)
        .exclude(state=ReplicaState.GONE)
        .select_related("deployment", "server")
    )
    newest = {replica.deployment_id: wanted_rollout(replica.deployment) for replica in replicas}
    for replica in replicas:
        rollout = newest[replica.deployment_id]
        is_settled = replica.state == ReplicaState.SERVING and not replica.leaving
        if not is_settled or rollout is None or replica.rollout_id != rollout.pk:
            return
    server = choose_to_vacate(list(find_homes(inference_cluster, now).homes.values()))
    for replica in replicas:
        if replica.server_id == server:
            replica.leaving = True
            replica.save(update_fields=["leaving"])
            record(replica.deployment, "moved", f"It leaves {replica.server.name}, which can be lent.")
            wake("steer_deployments")
