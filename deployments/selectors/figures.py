"""Figures of all deployments, for a monitoring system."""

from __future__ import annotations

from dataclasses import dataclass

from django.db.models import Count, Q

from deployments.choices import DeploymentState, ReplicaState
from deployments.models import Deployment
from punctual.protocol.latencies import LATENCY_BUCKETS


@dataclass(frozen=True, slots=True)
class DeploymentFigures:
    """One deployment.

    Attributes:
        servers: by kind: `serving`, `wanted`, `min` and `max`. requests: since it began, by outcome.
        latencies: requests since it began, by bucket (`punctual.protocol.latencies`).
    """

    project: str
    name: str
    id: str
    state: str
    latency_target_seconds: float | None
    servers: dict[str, float]
    requests: dict[str, int]
    inputs: int
    batches: int
    latencies: list[int]


def deployment_figures() -> list[DeploymentFigures]:
    """Return the figures of all deployments that have not stopped."""
    serving = Count("replicas", filter=Q(replicas__state=ReplicaState.SERVING))
    found = Deployment.objects.exclude(state=DeploymentState.STOPPED).select_related("project")
    return [_figures(deployment) for deployment in found.annotate(serving=serving).order_by("pk")]


def _figures(deployment: Deployment) -> DeploymentFigures:
    totals = deployment.totals
    failed = totals.get("failed", 0)
    return DeploymentFigures(
        project=deployment.project.name,
        name=deployment.name,
        id=deployment.pk,
        state=deployment.state,
        latency_target_seconds=deployment.latency_target_seconds,
        servers={
            "serving": getattr(deployment, "serving", 0),
            "wanted": deployment.wanted_servers,
            "min": deployment.minimum_servers,
            "max": deployment.maximum_servers,
        },
        requests={
            "answered": totals.get("requests", 0) - failed,
            "failed": failed,
            "refused": totals.get("refused", 0),
            "rejected": totals.get("rejected", 0),
        },
        inputs=totals.get("inputs", 0),
        batches=totals.get("batches", 0),
        latencies=totals.get("latencies") or [0] * LATENCY_BUCKETS,
    )
