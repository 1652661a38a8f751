"""Latency targets of deployments whose layers stream from host memory."""

from __future__ import annotations

from deployments.choices import ReplicaState
from deployments.models import Deployment
from deployments.selectors.rings import ring_plan, ring_times
from moe.moesys.serving_ring import judge_ring
from projects.errors import InvalidRequest


def check_rings(deployment: Deployment, target_seconds: float | None) -> None:
    """Return if all serving replicas can meet a latency target, by their measurements.

    Raises:
        InvalidRequest: a replica's layers stream too slowly; the text says what would meet the target.
    """
    for replica in deployment.replicas.filter(state=ReplicaState.SERVING).exclude(ring={}):
        verdict = judge_ring(ring_plan(replica.ring), ring_times(replica.ring), target_seconds)
        if not verdict.is_admitted:
            raise InvalidRequest(verdict.reason, errors={"latency_target_seconds": [verdict.reason]})
