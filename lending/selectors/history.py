"""The history of inference clusters for the dashboard. Names no job."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from math import ceil
from typing import Any

from django.db.models import (
    Avg,
    Count,
    DateTimeField,
    DurationField,
    Exists,
    ExpressionWrapper,
    F,
    Func,
    IntegerField,
    Max,
    OuterRef,
    Q,
    QuerySet,
    Sum,
    Value,
)
from django.db.models.fields.json import KeyTextTransform
from django.db.models.functions import Cast

from cluster.choices import LendingState, ServerState
from cluster.models import Gpu, Server
from cluster.selectors.utilisation import USES, utilisation_series
from lending.core.history import (
    CombinedPoint,
    InferenceSide,
    MoveKind,
    ServerCounts,
    ServerMove,
    ServerStay,
    Span,
    TrainingPoint,
    UsagePoint,
    borrowed_spans,
    combined_usage,
    server_steps,
)
from lending.models import InferenceCluster, LendingEvent, ReclaimedServer, ReclaimOrder

MAXIMUM_POINTS = 600
"""More samples than this are averaged before they are drawn."""
_BUSY_USES = tuple(use for use in USES if use not in ("idle", "unavailable"))
_ORIGIN = datetime(2020, 1, 1, tzinfo=UTC)


@dataclass(frozen=True, slots=True)
class ForecastPoint:
    """Forecast usage (0 to 1) of the period that ends at ``ends_at``; ``forecaster`` is empty for a mean of
    several."""

    ends_at: datetime
    #: Forecast share of GPUs that serve requests, 0 to 1.
    usage: float
    forecaster: str


@dataclass(frozen=True, slots=True)
class UsageHistory:
    """Usage and forecasts of an inference cluster, oldest first.

    ``reserve``: servers that are never lent. ``periods_per_point``: samples averaged into each point.
    """

    samples: list[UsagePoint]
    forecasts: list[ForecastPoint]
    period_seconds: float
    periods_per_point: int
    servers: int
    gpus: int
    emulated_gpus: int
    reserve: int
    #: Distinct sources that the samples name; an empty string for samples without one.
    sources: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class LendingCounters:
    """Counts of orders, returns and preemptions since a given time. Return times cover the orders whose
    servers all came back since then; None if there is none."""

    loan_orders: int
    reclaim_orders: int
    #: Reclaim orders whose servers all came back.
    returned_orders: int
    #: Those among them that came back after `wanted_by`.
    returned_late: int
    mean_seconds_to_return: float | None
    worst_seconds_to_return: float | None
    returned_servers: int
    preempted_jobs: int

    @property
    def preemptions_per_server(self) -> float | None:
        """Jobs preempted per returned server; None before the first return."""
        return self.preempted_jobs / self.returned_servers if self.returned_servers else None


def inference_cluster_chosen(name: str) -> tuple[InferenceCluster | None, list[InferenceCluster]]:
    """Return the inference cluster called ``name`` and all of them; the first if ``name`` is empty.

    The first element is None if there is no such cluster.
    """
    known = list(InferenceCluster.objects.select_related("cluster"))
    if not name:
        return (known[0] if known else None), known
    return next((one for one in known if one.name == name), None), known


def usage_history(
    inference_cluster: InferenceCluster,
    since: datetime,
    until: datetime,
    maximum_points: int = MAXIMUM_POINTS,
) -> UsageHistory:
    """Return samples of the periods that ended between two times, and forecasts up to one period later."""
    following = until + timedelta(seconds=inference_cluster.period_seconds)
    samples = inference_cluster.usage_samples.filter(period_ends_at__gt=since, period_ends_at__lte=until)
    forecasts = inference_cluster.forecasts.filter(period_ends_at__gt=since, period_ends_at__lte=following)
    periods = max(1, ceil(samples.count() / maximum_points))
    gpus = _gpus(inference_cluster)
    rule = inference_cluster.rule()
    return UsageHistory(
        samples=_samples(inference_cluster, samples, periods),
        forecasts=_forecasts(inference_cluster, forecasts, periods),
        period_seconds=inference_cluster.period_seconds,
        periods_per_point=periods,
        servers=rule.servers,
        gpus=gpus["total"],
        emulated_gpus=gpus["emulated"],
        reserve=rule.reserve,
        sources=tuple(sorted(set(samples.order_by().values_list("source", flat=True).distinct()))),
    )


def _gpus(inference_cluster: InferenceCluster) -> dict[str, int]:
    return Gpu.objects.filter(server__inference_cluster=inference_cluster).aggregate(
        total=Count("pk"), emulated=Count("pk", filter=Q(emulated=True))
    )


def _samples(inference_cluster: InferenceCluster, samples: QuerySet[Any], periods: int) -> list[UsagePoint]:
    if periods > 1:
        rows = _averaged(inference_cluster, samples, periods).annotate(
            mean=Avg("usage"), missing=Max("shortfall_servers"), seen=Max("seen_shortfall_servers"),
            away=Avg("on_loan_servers"),
        )  # fmt: skip
        return [
            UsagePoint(
                row["ends_at"], round(row["mean"], 4), row["missing"], row["seen"], round(row["away"], 2)
            )
            for row in rows
        ]
    return [
        UsagePoint(*row)
        for row in samples.values_list(
            "period_ends_at", "usage", "shortfall_servers", "seen_shortfall_servers", "on_loan_servers"
        )
    ]


def _forecasts(
    inference_cluster: InferenceCluster, forecasts: QuerySet[Any], periods: int
) -> list[ForecastPoint]:
    if periods > 1:
        rows = _averaged(inference_cluster, forecasts, periods).annotate(mean=Avg("usage"))
        return [ForecastPoint(row["ends_at"], round(row["mean"], 4), "") for row in rows]
    return [ForecastPoint(*row) for row in forecasts.values_list("period_ends_at", "usage", "forecaster")]


def _averaged(inference_cluster: InferenceCluster, rows: QuerySet[Any], periods: int) -> QuerySet[Any]:
    """Group rows by ``periods`` of them, each group under the end of its last period, oldest first."""
    width = timedelta(seconds=periods * inference_cluster.period_seconds)
    # A period that ends where a group begins belongs to the previous group.
    inside = ExpressionWrapper(
        F("period_ends_at") - Value(timedelta(milliseconds=1)), output_field=DateTimeField()
    )
    begins = Func(Value(width), inside, Value(_ORIGIN), function="date_bin", output_field=DateTimeField())
    ends = ExpressionWrapper(begins + Value(width), output_field=DateTimeField())
    return rows.order_by().annotate(ends_at=ends).values("ends_at").order_by("ends_at")


def servers_history(
    inference_cluster: InferenceCluster, since: datetime, until: datetime
) -> list[ServerCounts]:
    """Return the server counts of the training cluster and this inference cluster; empty without any
    server."""
    servers = Server.objects.filter(
        Q(inference_cluster=inference_cluster) | Q(inference_cluster__isnull=True),
        cluster_id=inference_cluster.cluster_id,
    ).values_list("inference_cluster_id", "created_at", "state", "state_changed_at")
    training: list[ServerStay] = []
    inference: list[ServerStay] = []
    for home, joined_at, state, changed_at in servers:
        member = ServerStay(joined_at, changed_at if state == ServerState.REMOVED else None)
        (training if home is None else inference).append(member)
    if not training and not inference:
        return []
    return server_steps(training, inference, _moves(inference_cluster, since, until), since, until)


def _moves(inference_cluster: InferenceCluster, since: datetime, until: datetime) -> list[ServerMove]:
    """Return the last move before ``since``, if any, and the moves between the two times, oldest first."""
    moves = inference_cluster.events.filter(kind__in=[*MoveKind], happened_at__lte=until).order_by(
        "happened_at", "id"
    )
    before = moves.filter(happened_at__lt=since).last()
    return [_move(row) for row in ([before] if before else []) + list(moves.filter(happened_at__gte=since))]


def _move(row: LendingEvent) -> ServerMove:
    return ServerMove(
        row.happened_at, MoveKind(row.kind), tuple(row.detail.get("servers", ())), row.on_loan, row.reclaiming
    )


def borrowed_time(inference_cluster: InferenceCluster, since: datetime, until: datetime) -> list[Span]:
    """Return when each of its servers was on the training side between two times. ``until`` is now."""
    moves = [move for move in _moves(inference_cluster, since, until) if move.at >= since]
    away = inference_cluster.servers.filter(
        lending_state__in=[LendingState.ON_LOAN, LendingState.RECLAIMING]
    ).values_list("name", flat=True)
    return borrowed_spans(moves, set(away), since, until)


def combined_usage_history(
    inference_cluster: InferenceCluster, since: datetime, until: datetime
) -> list[CombinedPoint]:
    """Return the usage of both clusters from the later of ``since`` and the inference cluster's first
    sample."""
    usage = usage_history(inference_cluster, since, until)
    if not usage.samples:
        return []
    point_seconds = usage.period_seconds * usage.periods_per_point
    first = max(since, usage.samples[0].ends_at - timedelta(seconds=point_seconds))
    series = utilisation_series(first, until)
    training = [
        TrainingPoint(
            at=moment,
            busy_gpus=sum(series.gpus_by_use[use][place] for use in _BUSY_USES),
            total_gpus=sum(series.gpus_by_use[use][place] for use in USES),
        )
        for place, moment in enumerate(series.times)
    ]
    steps: Sequence[ServerCounts] = servers_history(inference_cluster, since, until)
    return combined_usage(
        training, InferenceSide(usage.servers, usage.gpus, usage.samples, point_seconds, steps)
    )


def lending_counters(inference_cluster: InferenceCluster, since: datetime) -> LendingCounters:
    """Count loans, reclaims and their preemptions since a given time."""
    returned = returned_orders(since).filter(inference_cluster=inference_cluster)
    found = returned.aggregate(
        count=Count("pk"),
        late=Count("pk", filter=Q(returned_at__gt=F("wanted_by"), wanted_by__gt=F("created_at"))),
        mean=Avg("took"),
        worst=Max("took"),
        preempted=Sum(Cast(KeyTextTransform("preempted_jobs", "outcome"), IntegerField())),
    )
    return LendingCounters(
        loan_orders=inference_cluster.loan_orders.filter(created_at__gte=since).count(),
        reclaim_orders=inference_cluster.reclaim_orders.filter(created_at__gte=since).count(),
        returned_orders=found["count"],
        returned_late=found["late"],
        mean_seconds_to_return=None if found["mean"] is None else found["mean"].total_seconds(),
        worst_seconds_to_return=None if found["worst"] is None else found["worst"].total_seconds(),
        returned_servers=ReclaimedServer.objects.filter(reclaim_order__in=returned).count(),
        preempted_jobs=found["preempted"] or 0,
    )


def returned_orders(since: datetime) -> QuerySet[Any]:
    """Return reclaim orders completed since a given time that took at least one server back, with their
    duration ``took``.

    Orders met by withdrawn offers alone took no server from training and would make returns look quick.
    """
    took = ExpressionWrapper(F("returned_at") - F("begun_at"), output_field=DurationField())
    return ReclaimOrder.objects.filter(
        Exists(ReclaimedServer.objects.filter(reclaim_order=OuterRef("pk"))), returned_at__gte=since
    ).annotate(took=took)
