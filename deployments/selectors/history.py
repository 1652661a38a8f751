"""A deployment's answered requests: sums over a time, and samples for figures."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime, timedelta

from django.db.models import Sum

from cluster.choices import LendingState
from deployments.models import Deployment, DeploymentSample
from punctual.protocol.latencies import LATENCY_BUCKETS, latency_percentile

#: Time that summaries cover.
RECENT = timedelta(minutes=5)
MOST_POINTS = 240
_SUMMED = ("requests", "inputs", "failed", "refused", "rejected", "batches", "busy_seconds")


@dataclass(frozen=True, slots=True)
class Answered:
    """Counts of a deployment in some time. Percentiles are of all requests together, None without any."""

    requests: int
    failed: int
    refused: int
    p50_seconds: float | None
    p95_seconds: float | None
    p99_seconds: float | None


def answered_since(deployment: Deployment, since: datetime) -> Answered:
    """Return the sum of the samples since then."""
    samples = deployment.samples.filter(ended_at__gt=since).order_by()
    sums = samples.aggregate(
        requests=Sum("requests", default=0),
        failed=Sum("failed", default=0),
        refused=Sum("refused", default=0),
    )
    total = [0] * LATENCY_BUCKETS
    for counts in samples.filter(requests__gt=0).values_list("latencies", flat=True):
        for bucket, count in enumerate(counts):
            total[bucket] += count
    p50, p95, p99 = (latency_percentile(total, share) for share in (0.5, 0.95, 0.99))
    return Answered(sums["requests"], sums["failed"], sums["refused"], p50, p95, p99)


def deployment_history(
    deployment: Deployment, since: datetime, most_points: int = MOST_POINTS
) -> list[DeploymentSample]:
    """Return the samples since then, oldest first; neighbours are joined until at most ``most_points`` are
    left."""
    samples = list(deployment.samples.filter(ended_at__gt=since).order_by("ended_at"))
    width = max(1, -(-len(samples) // most_points))
    if width == 1:
        return samples
    return [_join(samples[first : first + width]) for first in range(0, len(samples), width)]


def _join(samples: list[DeploymentSample]) -> DeploymentSample:
    last = samples[-1]
    latencies = [sum(counts) for counts in zip(*(sample.latencies for sample in samples), strict=True)]
    return DeploymentSample(
        deployment_id=last.deployment_id,
        began_at=samples[0].began_at,
        ended_at=last.ended_at,
        busy_servers=sum(sample.busy_servers for sample in samples) / len(samples),
        latencies=latencies,
        p50_seconds=latency_percentile(latencies, 0.5),
        p95_seconds=latency_percentile(latencies, 0.95),
        p99_seconds=latency_percentile(latencies, 0.99),
        serving=last.serving,
        wanted=last.wanted,
        servers_home=last.servers_home,
        servers_lent=last.servers_lent,
        **{name: sum(getattr(sample, name) for sample in samples) for name in _SUMMED},
    )


def servers_home_and_lent(deployment: Deployment) -> dict[str, int]:
    """Return the numbers of servers of its inference cluster that are at `home` and `lent`."""
    states = list(deployment.inference_cluster.servers.values_list("lending_state", flat=True))
    home = states.count(LendingState.INFERENCE)
    return {"home": home, "lent": len(states) - home}
