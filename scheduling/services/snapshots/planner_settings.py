"""The operator's settings in the core's form."""

from __future__ import annotations

from django.utils import timezone

from cluster.models import Cluster
from scheduling.core.question.snapshot import Fill, Newcomers, PlannerSettings
from scheduling.services.snapshots.change_times import change_slack_seconds


def planner_settings(cluster: Cluster) -> PlannerSettings:
    """Return the operator's settings. What failures cost differs between jobs (failure_charges)."""
    return PlannerSettings(
        slot_seconds=cluster.slot_seconds,
        fill=Fill(cluster.fill),
        reserve_servers=cluster.reserve_servers,
        change_slack_seconds=change_slack_seconds(cluster, timezone.now()),
        offer_hold_seconds=cluster.offer_hold_seconds,
        newcomers=Newcomers(cluster.newcomers),
        ageing_weight=max(0.0, cluster.ageing_weight),
        worker_memory_bytes=float(max(0, cluster.worker_memory_bytes)),
    )
