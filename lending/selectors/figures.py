"""Metrics of inference clusters for the monitoring system. Names no person."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from django.db.models import Avg, Count, Max, QuerySet

from cluster.choices import LendingState
from cluster.models import Server
from lending.choices import LoanState, ReclaimState
from lending.models import InferenceCluster, LoanOrder, ReclaimOrder, UsageForecast, UsageSample
from lending.selectors.history import returned_orders

_HOMED_STATES = (LendingState.INFERENCE, LendingState.ON_LOAN, LendingState.RECLAIMING)


@dataclass(frozen=True, slots=True)
class LendingFigures:
    """Metrics of one inference cluster. The latest usage, its forecast and its shortfall are None before the
    first sample.

    Return times cover the reclaim orders completed since a given time; None if there is none.
    """

    name: str
    servers: dict[str, int]
    #: Latest measured share of GPUs that serve requests, 0 to 1.
    usage: float | None
    #: Forecast usage of the period after it.
    forecast: float | None
    shortfall_servers: int | None
    #: Number of orders by state.
    loan_orders: dict[str, int]
    #: Number of orders by state.
    reclaim_orders: dict[str, int]
    mean_seconds_to_return: float | None
    worst_seconds_to_return: float | None


def lending_figures(since: datetime) -> list[LendingFigures]:
    """Return the metrics of every inference cluster in seven queries."""
    servers = _counted(Server.objects.filter(inference_cluster__isnull=False), "lending_state")
    loans = _counted(LoanOrder.objects.all(), "state")
    reclaims = _counted(ReclaimOrder.objects.all(), "state")
    usage = _newest(UsageSample.objects.all())
    forecasts = _newest(UsageForecast.objects.all())
    returns = {
        row["inference_cluster_id"]: (row["mean"].total_seconds(), row["worst"].total_seconds())
        for row in returned_orders(since)
        .order_by()
        .values("inference_cluster_id")
        .annotate(mean=Avg("took"), worst=Max("took"))
    }
    return [
        LendingFigures(
            name=one.name,
            servers={state: servers.get((one.pk, state), 0) for state in _HOMED_STATES},
            usage=usage[one.pk].usage if one.pk in usage else None,
            forecast=forecasts[one.pk].usage if one.pk in forecasts else None,
            shortfall_servers=usage[one.pk].shortfall_servers if one.pk in usage else None,
            loan_orders={state: loans.get((one.pk, state), 0) for state in LoanState.values},
            reclaim_orders={state: reclaims.get((one.pk, state), 0) for state in ReclaimState.values},
            mean_seconds_to_return=returns.get(one.pk, (None, None))[0],
            worst_seconds_to_return=returns.get(one.pk, (None, None))[1],
        )
        for one in InferenceCluster.objects.all()
    ]


def _counted(rows: QuerySet[Any], field: str) -> dict[tuple[int, str], int]:
    """Count rows by inference cluster and the value of ``field``."""
    counts = rows.order_by().values_list("inference_cluster_id", field).annotate(count=Count("pk"))
    return {(cluster_id, value): count for cluster_id, value, count in counts}


def _newest(rows: QuerySet[Any]) -> dict[int, Any]:
    """Return the row of the latest period of each inference cluster."""
    ordered = rows.order_by("inference_cluster_id", "-period_ends_at").distinct("inference_cluster_id")
    return {row.inference_cluster_id: row for row in ordered}
