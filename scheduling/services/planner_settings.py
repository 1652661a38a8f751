"""The operator's choices and the slack of new promises, as the core takes them."""

from __future__ import annotations

from collections.abc import Sequence

from django.utils import timezone

from cluster.models import Cluster
from recovery.costs.failures import FailureCost, failures_cost_seconds
from scheduling.checkpoint_interval import RESERVE_CHECKPOINT_SECONDS
from scheduling.core.plans.reserve import seconds_to_place_again
from scheduling.core.question.snapshot import Fill, JobSnapshot, Newcomers, PlannerSettings
from scheduling.services.change_times import change_slack_seconds

#: From the last file being stored to the control plane's knowing it; between two looks at the agents' leases.
REPORTING_SECONDS = 0.5
LEASE_LOOK_SECONDS = 2.0
#: What a change onto new GPUs costs before any was measured.
DEFAULT_PAUSE_SECONDS = 5.0


def planner_settings(cluster: Cluster, jobs: Sequence[JobSnapshot] = ()) -> PlannerSettings:
    """The operator's choices as the core takes them, with the slack that the reserve asks of new promises
    beside ``jobs``."""
    return PlannerSettings(
        slot_seconds=cluster.slot_seconds,
        fill=Fill(cluster.fill),
        reserve_servers=cluster.reserve_servers,
        reserve_slack_seconds=reserve_slack_seconds(cluster, jobs),
        change_slack_seconds=change_slack_seconds(cluster, timezone.now()),
        offer_hold_seconds=cluster.offer_hold_seconds,
        newcomers=Newcomers(cluster.newcomers),
        ageing_weight=max(0.0, cluster.ageing_weight),
        worker_memory_bytes=float(max(0, cluster.worker_memory_bytes)),
    )


def reserve_slack_seconds(cluster: Cluster, jobs: Sequence[JobSnapshot]) -> float:
    """What a promise keeps for the failures that the reserve covers: until a server is given up, work that is
    lost, and a start.

    Workers store their state every `RESERVE_CHECKPOINT_SECONDS` at least where there is a reserve, and a
    state counts once it is stored.
    """
    curves = {id(job.curve): job.curve for job in jobs if job.curve.levels.size}  # many jobs share one
    pauses = [float(curve.pause_seconds.max()) for curve in curves.values()]
    storing = max((job.finishing_seconds for job in jobs), default=REPORTING_SECONDS)
    cost = FailureCost(
        fence_seconds=cluster.fence_seconds + cluster.fence_margin_seconds + LEASE_LOOK_SECONDS,
        resources_seconds=seconds_to_place_again(cluster.slot_seconds),
        recovery_seconds=max([*pauses, 2 * DEFAULT_PAUSE_SECONDS]),
        lost_work_seconds=RESERVE_CHECKPOINT_SECONDS + storing,
    )
    return failures_cost_seconds(cluster.reserve_servers, cost)
