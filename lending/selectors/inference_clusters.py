"""Queries for inference clusters: their servers, usage, forecasts and orders."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta
from uuid import UUID

from django.db.models import Count, Max, QuerySet
from django.utils import timezone

from cluster.choices import LendingState
from cluster.models import Server
from lending.choices import LoanState, ReclaimState
from lending.core.lending_rule import LendingDecision
from lending.models import (
    ForecasterTraining,
    InferenceCluster,
    LendingEvent,
    LoanOrder,
    ReclaimOrder,
    UsageForecast,
    UsageSample,
)
from projects.errors import NotFound
from projects.models import token_digest


@dataclass(frozen=True, slots=True)
class LendingStanding:
    """Current state of an inference cluster: servers by state, and what its rule would do now.

    ``forecast`` is for the period after the latest ``usage``; both and ``decision`` are None before the first
    sample. ``recent_peak``: the largest share of its GPUs used or expected within the minimum hold time.
    ``settled``: servers on loan for at least that time. The rule takes both.
    """

    servers: int
    #: Servers at their inference home.
    at_home: int
    #: Servers lent to training.
    on_loan: int
    #: Servers being returned.
    reclaiming: int
    #: Servers that are never lent.
    reserve: int
    settled: int
    recent_peak: float
    #: Loan orders that are not carried out yet.
    loans_pending: int
    #: Reclaim orders that are not completed yet.
    reclaims_open: int
    usage: UsageSample | None
    forecast: UsageForecast | None
    decision: LendingDecision | None


def inference_clusters(only: InferenceCluster | None = None) -> QuerySet[InferenceCluster]:
    """Return all inference clusters, or the given one."""
    rows = InferenceCluster.objects.select_related("cluster")
    return rows if only is None else rows.filter(pk=only.pk)


def scheduler_bearer(credential: str) -> InferenceCluster | None:
    """Return the inference cluster whose scheduler has the credential."""
    rows = InferenceCluster.objects.select_related("account", "cluster")
    return rows.filter(credential_digest=token_digest(credential)).first()


def servers_at_home(inference_cluster: InferenceCluster) -> list[str]:
    """Return the names of the servers that are not lent."""
    at_home = inference_cluster.servers.filter(lending_state=LendingState.INFERENCE)
    return list(at_home.order_by("name").values_list("name", flat=True))


def inference_cluster_get(name: str) -> InferenceCluster:
    """Return one inference cluster.

    Raises:
        NotFound: there is none of that name.
    """
    found = inference_clusters().filter(name=name).first()
    if found is None:
        raise NotFound(f"There is no inference cluster called {name}.")
    return found


def usage_samples(inference_cluster: InferenceCluster) -> QuerySet[UsageSample]:
    return inference_cluster.usage_samples.all()


def usage_forecasts(inference_cluster: InferenceCluster) -> QuerySet[UsageForecast]:
    return inference_cluster.forecasts.all()


def lending_events(inference_cluster: InferenceCluster) -> QuerySet[LendingEvent]:
    """Return the history of its servers."""
    return inference_cluster.events.all()


def recent_peak(inference_cluster: InferenceCluster) -> float:
    """Return the largest share of its GPUs, 0 to 1, measured or expected within the minimum hold time.

    That time ends with the latest sample, so a late sample does not shorten it.
    """
    newest = inference_cluster.usage_samples.aggregate(at=Max("period_ends_at"))["at"]
    if newest is None:
        return 0.0
    since = newest - timedelta(seconds=inference_cluster.minimum_hold_seconds)
    measured = inference_cluster.usage_samples.filter(period_ends_at__gte=since)
    # A forecast is made one period before the period that it is for.
    expected = inference_cluster.forecasts.filter(period_ends_at__gt=since)
    highest = [each.aggregate(peak=Max("usage"))["peak"] for each in (measured, expected)]
    return inference_cluster.rule().recent_peak(*highest)


def settled_servers(inference_cluster: InferenceCluster, now: datetime) -> int:
    """Return how many of its servers have been on loan for the minimum hold time."""
    since = now - timedelta(seconds=inference_cluster.minimum_hold_seconds)
    lent = inference_cluster.servers.filter(lending_state=LendingState.ON_LOAN)
    return lent.filter(lending_changed_at__lte=since).count()


def standing(inference_cluster: InferenceCluster) -> LendingStanding:
    """Count its servers and evaluate its lending rule with the latest sample and forecast."""
    counts = dict(
        inference_cluster.servers.order_by().values_list("lending_state").annotate(count=Count("pk"))
    )
    at_home, on_loan, reclaiming = (
        counts.get(state, 0)
        for state in (LendingState.INFERENCE, LendingState.ON_LOAN, LendingState.RECLAIMING)
    )
    rule, peak = inference_cluster.rule(), recent_peak(inference_cluster)
    settled = settled_servers(inference_cluster, timezone.now())
    usage = inference_cluster.usage_samples.order_by("-period_ends_at").first()
    forecast = decision = None
    if usage is not None:
        following = usage.period_ends_at + timedelta(seconds=inference_cluster.period_seconds)
        forecast = inference_cluster.forecasts.filter(period_ends_at=following).first()
        decision = rule.decide(
            usage.usage,
            None if forecast is None else forecast.usage,
            on_loan=on_loan + reclaiming,
            being_returned=reclaiming,
            recent_peak=peak,
            settled=settled,
        )
    return LendingStanding(
        servers=at_home + on_loan + reclaiming,
        at_home=at_home,
        on_loan=on_loan,
        reclaiming=reclaiming,
        reserve=rule.reserve,
        settled=settled,
        recent_peak=peak,
        loans_pending=inference_cluster.loan_orders.filter(state=LoanState.PENDING).count(),
        reclaims_open=inference_cluster.reclaim_orders.filter(
            state__in=[ReclaimState.PENDING, ReclaimState.RECLAIMING]
        ).count(),
        usage=usage,
        forecast=forecast,
        decision=decision,
    )


def servers_lendable(inference_cluster: InferenceCluster) -> QuerySet[Server]:
    """Return all of its servers, lent or not, with their GPUs."""
    return inference_cluster.servers.prefetch_related("gpus")


def loan_orders(inference_cluster: InferenceCluster) -> QuerySet[LoanOrder]:
    return inference_cluster.loan_orders.all()


def loan_order_get(inference_cluster: InferenceCluster, order_id: UUID) -> LoanOrder:
    """Return one of its loan orders.

    Raises:
        NotFound: it has none of that id.
    """
    order = inference_cluster.loan_orders.filter(pk=order_id).first()
    if order is None:
        raise NotFound(f"There is no loan order {order_id}.")
    return order


def reclaim_orders(inference_cluster: InferenceCluster) -> QuerySet[ReclaimOrder]:
    return inference_cluster.reclaim_orders.prefetch_related("servers__server")


def reclaim_order_get(inference_cluster: InferenceCluster, order_id: UUID) -> ReclaimOrder:
    """Return one of its reclaim orders with its servers.

    Raises:
        NotFound: it has none of that id.
    """
    order = reclaim_orders(inference_cluster).filter(pk=order_id).first()
    if order is None:
        raise NotFound(f"There is no reclaim order {order_id}.")
    return order


def trainings(inference_cluster: InferenceCluster) -> QuerySet[ForecasterTraining]:
    """Return the trainings of its forecasters."""
    return inference_cluster.trainings.select_related("trained")


def training_get(inference_cluster: InferenceCluster, training_id: int) -> ForecasterTraining:
    """Return one training of its forecasters.

    Raises:
        NotFound: it has none of that id.
    """
    training = inference_cluster.trainings.filter(pk=training_id).first()
    if training is None:
        raise NotFound(f"There is no training {training_id}.")
    return training
