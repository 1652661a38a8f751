"""The planner's input, read from rows: one snapshot for each kind of GPU (a pool)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import structlog

from cluster.models import Cluster, Gpu
from projects.prepared import PreparedValues
from scheduling.core.question.snapshot import JobSnapshot, ServerSnapshot, ServiceClass, Snapshot
from scheduling.models import Job
from scheduling.models import ScalingCurve as MeasuredCurve
from scheduling.policies import DEFAULT_POLICY, Policy, policy_named
from scheduling.services.generations.blocking import blocked_gpus
from scheduling.services.generations.failure_charges import REPORTING_SECONDS, CountsOn, FailureCharges
from scheduling.services.memory.disk_shares import levels_with_room
from scheduling.services.rows.borrowed import borrowed_by
from scheduling.services.rows.claims import Claims, GpuOfPool
from scheduling.services.snapshots.held_offers import held_offers
from scheduling.services.snapshots.jobs_of_pool import PoolReading, core_curve, noted
from scheduling.services.snapshots.planner_settings import planner_settings
from scheduling.services.snapshots.servers_of_pool import servers_of_pool
from scheduling.services.verdicts.incidents import breaking_jobs

log = structlog.get_logger(__name__)

#: Longest-waiting undecided jobs that one pass reads; more than it decides.
MOST_NEWCOMERS = 300


@dataclass(frozen=True)
class Pool:
    """A snapshot and what its addresses and ids refer to."""

    kind: str
    snapshot: Snapshot
    gpus: tuple[GpuOfPool, ...]
    #: GPU addresses without a claim of any generation.
    free: frozenset[int]
    #: Job id of the unretired claim, by address.
    claims: Mapping[int, str]
    #: Costs of the failures that the reserve covers.
    charges: FailureCharges
    #: Jobs left out because their rows cannot be planned, with the reason.
    unplannable: Mapping[str, str] = field(default_factory=dict)
    #: Jobs left out because they recently broke a plan, with the error.
    breaking: Mapping[str, str] = field(default_factory=dict)
    #: What the promise of each job assumes.
    counts_on: Mapping[str, CountsOn] = field(default_factory=dict)

    def gpu_rows(self, addresses: Iterable[int]) -> dict[int, Gpu]:
        """Return the rows of these GPUs with their servers, by address. One query if there are any."""
        ids = {self.gpus[address].id: address for address in addresses}
        found = Gpu.objects.filter(pk__in=ids).select_related("server") if ids else ()
        return {ids[gpu.pk]: gpu for gpu in found}


def pool_kinds(cluster: Cluster) -> list[str]:
    """Return the cluster's own kinds of GPU in a fixed order. Borrowed servers join one of these pools."""
    return [kind for (kind,) in _KINDS.ask(cluster.pk)]


_KINDS = PreparedValues(
    lambda cluster_id: Gpu.objects.own(cluster_id).order_by("kind").values_list("kind").distinct()
)


def pool_snapshot(
    cluster: Cluster,
    kind: str,
    now: datetime,
    *,
    reallocate_at: datetime | None = None,
    awaiting_levels: bool = False,
) -> Pool:
    """Return the pool of one kind of GPU. ``reallocate_at``: the slot boundary from which allocations may
    change.

    ``awaiting_levels``: include newcomers that wait for more levels of their curve, after all others.
    """
    moment = now.timestamp()
    borrowed = borrowed_by(cluster, kind)
    servers, gpus = servers_of_pool(cluster, kind, borrowed)
    own = len(gpus) - (borrowed.total if borrowed else 0)
    claims = Claims.read(cluster, gpus)
    breaking = breaking_jobs(cluster, now)
    charges = FailureCharges(cluster, _largest_own(servers))
    jobs = PoolReading(cluster, kind, now, claims, charges, own, borrowed).jobs(
        left_out=breaking, awaiting_levels=awaiting_levels, most_newcomers=MOST_NEWCOMERS
    )
    snapshot = Snapshot(
        now=moment,
        next_slot_at=max(moment, (reallocate_at or now).timestamp()),
        servers=tuple(servers),
        jobs=jobs.planned,
        held_offers=tuple(held_offers(cluster, kind, now, charges, total=own)),
        blocked=tuple(blocked_gpus(cluster, gpus, claims, {job.id for job in jobs.planned}, moment)),
        settings=planner_settings(cluster),
        memory=noted(cluster.policy_memory, cluster.policy, kind),
    )
    return Pool(
        kind,
        snapshot,
        tuple(gpus),
        frozenset(range(len(gpus))).difference(claims.job_of),
        claims.job_of,
        charges,
        jobs.unplannable,
        breaking,
        counts_on=jobs.counts_on,
    )


def _largest_own(servers: Iterable[ServerSnapshot]) -> int:
    """Return the GPUs of the largest server not on loan; a level needs at least as many servers of that
    size."""
    return max((server.gpus for server in servers if not server.on_loan), default=0)


def cluster_policy(cluster: Cluster) -> Policy:
    """Return the policy that the operator chose; if there is none of that name, log an error and return
    the default."""
    try:
        return policy_named(cluster.policy)
    except ValueError as error:
        log.error("unknown_policy", cluster=cluster.name, error=str(error), used=DEFAULT_POLICY)
        return policy_named(DEFAULT_POLICY)


def asking_again(pool: Pool, row: Job, measured: MeasuredCurve, margin: float) -> JobSnapshot | None:
    """Return a declined job as it asks the pool for an offer; None if no level can run it."""
    total = sum(server.gpus for server in pool.snapshot.servers if not server.on_loan)
    levels = levels_with_room(measured.levels.all(), measured, row.cluster)
    curve = core_curve(levels, batch=row.global_batch_size, total=total, margin=margin)
    if curve is None or row.deadline_at is None:
        return None
    counts_on = pool.charges.of(row, curve, measured=measured, any_deadline=True)
    return JobSnapshot(
        id=row.pk,
        service_class=ServiceClass(row.service_class),
        submitted_at=row.submitted_at.timestamp(),
        deadline_at=row.deadline_at.timestamp(),
        remaining_iterations=float(row.max_iterations),
        curve=pool.charges.promised(curve, counts_on),
        finishing_seconds=measured.finishing_seconds + REPORTING_SECONDS,
        failure_slack_seconds=counts_on.slack_seconds,
    )
