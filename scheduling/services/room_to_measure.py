"""Where a function can be measured now so that no promise is harmed."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from datetime import datetime

import numpy as np
import structlog
from django.utils import timezone

from cluster.models import Cluster, Gpu
from scheduling.core.placement.measuring import BEST_EFFORT, FREE, TAKEN, measuring_blocks
from scheduling.core.plans.release import measured_by
from scheduling.core.question.snapshot import BlockedGpus, ServiceClass, Snapshot
from scheduling.core.question.worker_counts import measurable_levels
from scheduling.models import Job, ScalingCurve
from scheduling.policies import Policy
from scheduling.services.blocking import release_bounds
from scheduling.services.borrowed import curve_made_on, curve_on
from scheduling.services.incidents import note_not_measured
from scheduling.services.isolating import FAILURES
from scheduling.services.snapshots import Pool, pool_snapshot
from scheduling.services.unfit_levels import largest_unfit_level

log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class Measurement:
    """A measurement that may start: its job, its block, and the best-effort jobs that make room."""

    job: Job
    pool: Pool
    block: tuple[int, ...]
    levels: tuple[int, ...]
    displaced: tuple[str, ...]
    curve: ScalingCurve


def find_block(
    cluster: Cluster,
    job: Job,
    policy: Policy,
    now: datetime,
    *,
    above: int,
    kind: str | None = None,
    curve: ScalingCurve | None = None,
    spare_best_effort: bool = False,
) -> Measurement | None:
    """Where levels ``above`` one can be measured now so that no promise is harmed; None where nowhere.

    ``kind``: measure on borrowed servers, which have this kind of GPU, instead of on the cluster's own.
    ``curve``: the job's curve on a kind that the cluster owns; by default on the one that it is asked for on.
    ``spare_best_effort``: on idle GPUs alone; otherwise best effort makes room, as for whom a verdict depends
    on it.
    """
    on_own = curve or job.curve
    assert on_own is not None
    measured_curve = on_own if kind is None else curve_on(job, kind)
    unfit = 0 if measured_curve is None else largest_unfit_level(measured_curve)
    declared = job.function_version.worker_counts

    def levels_on(gpus: int) -> list[int]:
        possible = measurable_levels(job.global_batch_size, gpus, declared)
        return [level for level in possible if level > max(above, unfit)]

    # Most often everything that the cluster is large enough for is measured, and no snapshot is needed.
    if not levels_on(Gpu.objects.measurable(cluster, kind or on_own.gpu_kind).count()):
        return None
    pool = _without_newcomers(pool_snapshot(cluster, on_own.gpu_kind, now))
    levels = levels_on(len(pool.gpus))
    longest = measured_by(now.timestamp(), None, now.timestamp(), release_bounds(cluster), waits=True)
    standing = _standing(pool, spare_best_effort=spare_best_effort, on_loan=kind is not None, until=longest)
    baseline: set[str] | None = None
    for block in measuring_blocks([server.gpus for server in pool.snapshot.servers], standing, levels):
        displaces = any(address in pool.claims for address in block)
        until = measured_by(now.timestamp(), None, now.timestamp(), release_bounds(cluster), waits=displaces)
        blocked = (*pool.snapshot.blocked, BlockedGpus(addresses=block, until=until))
        # A measurement may take nothing that a promise stands on.
        if baseline is None:
            baseline = _at_risk(policy, pool.snapshot, job)
        if baseline is None:
            return None
        at_risk = _at_risk(policy, dataclasses.replace(pool.snapshot, blocked=blocked), job)
        if at_risk is not None and at_risk <= baseline:
            displaced = {pool.claims[address] for address in block if address in pool.claims}
            wanted = measurable_levels(job.global_batch_size, len(block), declared)
            measured = tuple(level for level in wanted if level > max(above, unfit))
            found = on_own if kind is None else curve_made_on(job, kind)
            return Measurement(job, pool, block, measured, tuple(sorted(displaced)), found)
    return None


def _without_newcomers(pool: Pool) -> Pool:
    """The pool as it is to those who were decided: a measurement takes nothing from the others."""
    decided = tuple(job for job in pool.snapshot.jobs if not job.newcomer)
    return dataclasses.replace(pool, snapshot=dataclasses.replace(pool.snapshot, jobs=decided))


def _standing(pool: Pool, *, spare_best_effort: bool, on_loan: bool, until: float) -> np.ndarray:
    """What every GPU of the pool is to a measurement that may last ``until`` then, on servers that are on
    loan or on the others."""
    standing = np.full(len(pool.gpus), TAKEN, dtype=np.int8)
    yielding = {
        job.id
        for job in pool.snapshot.jobs
        if job.service_class == ServiceClass.BEST_EFFORT and not job.locked and not spare_best_effort
    }
    blocked = {address for block in pool.snapshot.blocked for address in block.addresses}
    first = 0
    for server in pool.snapshot.servers:
        for address in range(first, first + server.gpus):
            usable = server.usable and server.on_loan == on_loan and server.ends_at > until
            if not usable or address in blocked or not pool.gpus[address].healthy:
                continue
            if address in pool.free:
                standing[address] = FREE
            elif pool.claims.get(address) in yielding:
                standing[address] = BEST_EFFORT
        first += server.gpus
    return standing


def _at_risk(policy: Policy, snapshot: Snapshot, job: Job) -> set[str] | None:
    """The promises at risk in a snapshot.

    None where no plan can be computed: then the job's function is not measured there, and the pass goes on.
    """
    try:
        return set(policy.replan(snapshot).at_risk)
    except FAILURES as error:
        log.exception("measurement_not_placed", job=job.pk, blocked=len(snapshot.blocked))
        note_not_measured(job.cluster, job, error, snapshot, timezone.now())
        return None
