"""Usage of the cluster's machines: series for charts, counts for tiles. Names no job."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from typing import Any

from django.db.models import Avg, DateTimeField, F, Func, Max, Value

from cluster.choices import ServerState
from cluster.models import Agent, Cluster, Server, UtilisationSample
from cluster.selectors.outages import outages_between

#: Uses of a GPU in stacking order; each is a column of UtilisationSample.
USES = ("promised", "soft", "best_effort", "profiling", "changing", "idle", "unavailable")


@dataclass(frozen=True, slots=True)
class UtilisationSeries:
    """GPUs by use, and jobs by whether they run, averaged over buckets that start at ``times`` (UTC)."""

    times: list[datetime]
    gpus_by_use: dict[str, list[float]]
    running_jobs: list[float]
    waiting_jobs: list[float]
    #: Largest number of GPUs in the cluster, per bucket.
    total_gpus: list[int]


@dataclass(frozen=True, slots=True)
class AgentCounts:
    """Number of agents that hold a lease, and of enrolled agents."""

    connected: int
    enrolled: int


def utilisation_series(since: datetime, until: datetime, maximum_points: int = 240) -> UtilisationSeries:
    """Return samples between two times, averaged in the database so that a week is as fast as an hour.

    While the platform was stopped, no GPU was available and no job ran.
    """
    seconds = max(1.0, (until - since).total_seconds() / maximum_points)
    bucket = Func(
        Value(timedelta(seconds=seconds)),
        F("taken_at"),
        Value(datetime(2020, 1, 1, tzinfo=UTC)),
        function="date_bin",
        output_field=DateTimeField(),
    )
    rows: list[Any] = list(
        UtilisationSample.objects.filter(taken_at__gte=since, taken_at__lte=until)
        .annotate(bucket=bucket)
        .values("bucket")
        .annotate(
            **{f"mean_{use}": Avg(use) for use in USES},
            mean_running=Avg("running_jobs"),
            mean_waiting=Avg("waiting_jobs"),
            largest_total=Max("total"),
        )
        .order_by("bucket")
    )
    stops = [
        stopped
        for cluster_id in Cluster.objects.values_list("pk", flat=True)
        for stopped, _started in outages_between(cluster_id, since, until)
    ]
    for stopped_at in stops:
        before = [row for row in rows if row["bucket"] <= stopped_at]
        if before:
            rows.insert(len(before), _while_stopped(before[-1], stopped_at))
    return UtilisationSeries(
        times=[row["bucket"] for row in rows],
        gpus_by_use={use: [round(row[f"mean_{use}"], 2) for row in rows] for use in USES},
        running_jobs=[round(row["mean_running"], 2) for row in rows],
        waiting_jobs=[round(row["mean_waiting"], 2) for row in rows],
        total_gpus=[row["largest_total"] for row in rows],
    )


def _while_stopped(before: dict[str, Any], stopped_at: datetime) -> dict[str, Any]:
    """Return the row that replaces samples until the platform starts again."""
    nothing = {f"mean_{use}": 0.0 for use in USES}
    total = before["largest_total"]
    return before | nothing | {"bucket": stopped_at, "mean_unavailable": total, "mean_running": 0.0}


def agent_counts() -> AgentCounts:
    """Count agents whose server is up, and all enrolled agents that are neither revoked nor removed."""
    states = list(
        Agent.objects.filter(revoked_at__isnull=True)
        .exclude(server__state=ServerState.REMOVED)
        .values_list("server__state", flat=True)
    )
    return AgentCounts(connected=sum(state == ServerState.UP for state in states), enrolled=len(states))


def servers_without_sandbox() -> list[str]:
    """Return names of servers whose agent runs users' code without a sandbox. Every page shows a warning
    about them."""
    return list(
        Server.objects.known()
        .filter(sandbox="none", agent__revoked_at__isnull=True)
        .order_by("name")
        .values_list("name", flat=True)
    )
