"""Finds GPUs on which a function can be measured now without harm to any promise."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime

import numpy as np
import structlog
from django.utils import timezone

from cluster.models import Cluster, Gpu
from projects.models import Project
from scheduling.core.placement.making_way import making_way, rests_until
from scheduling.core.placement.measuring import BEST_EFFORT, FREE, GROWN, TAKEN, measuring_blocks
from scheduling.core.plans.release import measured_by
from scheduling.core.question.decision import ChangeKind, Decision
from scheduling.core.question.snapshot import BlockedGpus, ServiceClass, Snapshot
from scheduling.core.question.worker_counts import measurable_levels
from scheduling.models import Job, ScalingCurve
from scheduling.policies import Policy
from scheduling.services.generations.blocking import release_bounds
from scheduling.services.measuring.measuring_turns import made_way_lately
from scheduling.services.measuring.unfit_levels import largest_unfit_level
from scheduling.services.memory.expert_levels import unfit_workers, worker_counts_of
from scheduling.services.rows.borrowed import curve_made_on, curve_on
from scheduling.services.snapshots.isolating import FAILURES
from scheduling.services.snapshots.setting_aside import note_not_measured
from scheduling.services.snapshots.snapshots import Pool, pool_snapshot
from scheduling.services.verdicts.quotas import profiling_refusal

log = structlog.get_logger(__name__)

#: Limit of jobs planned in one search; each job counts once for every block that is examined.
MOST_PLANNED_JOBS = 2_000
#: The largest and the smallest block are examined for any number of jobs.
LEAST_BLOCKS = 2


@dataclass(frozen=True)
class Measurement:
    """A measurement that may start: its job, its block, and the jobs that make way.

    ``displaced``: best-effort jobs, to be suspended. ``shrinking``: jobs with a deadline, which the next
    reallocation moves off the block.
    """

    job: Job
    pool: Pool
    #: Addresses of the GPUs.
    block: tuple[int, ...]
    #: Numbers of GPUs to measure.
    levels: tuple[int, ...]
    displaced: tuple[str, ...]
    shrinking: tuple[str, ...]
    curve: ScalingCurve


@dataclass
class RoomToMeasure:
    """State of one search for something to measure, shared by all jobs examined.

    Each pool is read once, and what a block would put at risk is computed once for all jobs. So a search
    costs no more than a few plans even if it finds nothing.
    """

    cluster: Cluster
    policy: Policy
    now: datetime
    #: Pools read so far, by kind of GPU.
    _pools: dict[str, Pool] = field(default_factory=dict)
    #: Plans by kind and measured block (None: no measurement). A plan is None if it cannot be computed.
    _plans: dict[tuple[str, BlockedGpus | None], Decision | None] = field(default_factory=dict)
    #: Jobs that wait to be measured; refusals by quota, by job id; jobs whose quota was checked.
    waiting: set[str] = field(default_factory=set)
    refused: dict[str, str] = field(default_factory=dict)
    asked: set[str] = field(default_factory=set)
    #: For jobs that wait for others to make way again: when the first of these may, in Unix seconds.
    turns: dict[str, float] = field(default_factory=dict)
    _made_way_at: dict[str, float] | None = None
    _refusals: dict[int, str | None] = field(default_factory=dict)

    def is_refused(self, job_id: str, project_id: int) -> bool:
        """Return whether the project's quota of measurements for today is used up."""
        if project_id not in self._refusals:
            project = Project.objects.get(pk=project_id)
            self._refusals[project_id] = profiling_refusal(project, self.now)
        self.asked.add(job_id)
        refusal = self._refusals[project_id]
        if refusal is not None:
            self.refused[job_id] = refusal
        return refusal is not None

    def block_for(
        self,
        job: Job,
        *,
        above: int,
        kind: str | None = None,
        curve: ScalingCurve | None = None,
        idle_gpus_alone: bool = False,
    ) -> Measurement | None:
        """Return where levels above ``above`` can be measured now without harm to any promise, or None.

        ``kind``: measure on borrowed servers, which have this kind of GPU, instead of on the cluster's own.
        ``curve``: the job's curve on a kind that the cluster owns; default: that of the kind that is tried
        for it. ``idle_gpus_alone``: no job makes way. Otherwise best-effort and grown jobs do, each at most
        once a minute, since a verdict depends on the measurement.
        """
        on_own = curve or job.curve
        assert on_own is not None
        measured_curve = on_own if kind is None else curve_on(job, kind)
        unfit = 0 if measured_curve is None else largest_unfit_level(measured_curve)
        unfit = max(unfit, unfit_workers(self.cluster, measured_curve))
        counts = worker_counts_of(job.function_version, measured_curve or on_own, job.global_batch_size)

        def levels_on(gpus: int) -> list[int]:
            possible = measurable_levels(job.global_batch_size, gpus, counts)
            return [level for level in possible if level > max(above, unfit)]

        # Usually every level that the cluster can run is measured, and no snapshot is needed.
        if not levels_on(Gpu.objects.measurable(self.cluster, kind or on_own.gpu_kind).count()):
            return None
        pool = self._pool(on_own.gpu_kind)
        levels = levels_on(len(pool.gpus))
        until = self._measured_by(waits=True)

        def blocks_beside(yielding: set[str]) -> Iterator[tuple[int, ...]]:
            standing = _standing(pool, yielding, on_loan=kind is not None, until=until)
            return measuring_blocks(_gpus_of_servers(pool), standing, levels)

        yielding = set() if idle_gpus_alone else self._yielding(pool, self.made_way_at)
        for block in self._candidates(pool, blocks_beside(yielding)):
            if self._harms_nobody(job, on_own.gpu_kind, block):
                displaced, shrinking = _by_way_to_leave(pool, _claimed(pool, block))
                found = on_own if kind is None else curve_made_on(job, kind)
                measured = tuple(levels_on(len(block)))
                return Measurement(job, pool, block, measured, displaced, shrinking, found)
        resting = set() if idle_gpus_alone else self._yielding(pool, {}) - yielding
        if resting and any(resting & _claimed(pool, block) for block in blocks_beside(yielding | resting)):
            self.turns[job.pk] = min(rests_until(self.made_way_at[job_id]) for job_id in resting)
        return None

    def all_turns(self) -> dict[str, float]:
        """Return `turns`, extended to waiting jobs that were not examined."""
        if not self.turns:
            return {}
        return dict.fromkeys(self.waiting - self.asked, min(self.turns.values())) | self.turns

    @property
    def made_way_at(self) -> dict[str, float]:
        """Return when each job last made way, for those that did so recently."""
        if self._made_way_at is None:
            self._made_way_at = made_way_lately(self.cluster, self.now)
        return self._made_way_at

    def _yielding(self, pool: Pool, made_way_at: Mapping[str, float]) -> set[str]:
        return making_way(pool.snapshot.jobs, made_way_at, self.now.timestamp())

    def _pool(self, kind: str) -> Pool:
        if kind not in self._pools:
            self._pools[kind] = _without_newcomers(pool_snapshot(self.cluster, kind, self.now))
        return self._pools[kind]

    def _measured_by(self, *, waits: bool) -> float:
        now = self.now.timestamp()
        return measured_by(now, None, now, release_bounds(self.cluster), waits=waits)

    def _candidates(self, pool: Pool, blocks: Iterable[tuple[int, ...]]) -> list[tuple[int, ...]]:
        """Return the blocks to examine. If the work does not suffice for all, these are the largest ones
        and the smallest, on which a job can at least be measured a little."""
        found = list(blocks)
        most = max(MOST_PLANNED_JOBS // max(len(pool.snapshot.jobs), 1), LEAST_BLOCKS)
        return found if len(found) <= most else [*found[: most - 1], found[-1]]

    def _harms_nobody(self, job: Job, kind: str, block: tuple[int, ...]) -> bool:
        """Return whether a measurement there takes nothing that a promise needs.

        If jobs with a deadline make way, it must not suspend any job with a deadline either.
        """
        pool = self._pool(kind)
        claimed = _claimed(pool, block)
        measured = BlockedGpus(addresses=block, until=self._measured_by(waits=bool(claimed)))
        before = self._planned_beside(job, kind, None)
        beside = None if before is None else self._planned_beside(job, kind, measured)
        if before is None or beside is None or not set(beside.at_risk) <= set(before.at_risk):
            return False
        best_effort = _best_effort(pool)
        return claimed <= best_effort or _suspended(beside) - best_effort <= _suspended(before)

    def _planned_beside(self, job: Job, kind: str, measured: BlockedGpus | None) -> Decision | None:
        if (kind, measured) not in self._plans:
            snapshot = self._pool(kind).snapshot
            blocked = snapshot.blocked if measured is None else (*snapshot.blocked, measured)
            asked = dataclasses.replace(snapshot, blocked=blocked)
            self._plans[kind, measured] = _planned(self.policy, asked, job)
        return self._plans[kind, measured]


def _gpus_of_servers(pool: Pool) -> list[int]:
    return [server.gpus for server in pool.snapshot.servers]


def _without_newcomers(pool: Pool) -> Pool:
    """Return the pool without newcomers: a measurement takes nothing from these."""
    decided = tuple(job for job in pool.snapshot.jobs if not job.newcomer)
    return dataclasses.replace(pool, snapshot=dataclasses.replace(pool.snapshot, jobs=decided))


def _claimed(pool: Pool, block: tuple[int, ...]) -> set[str]:
    """Return the ids of jobs that hold GPUs of the block."""
    return {pool.claims[address] for address in block if address in pool.claims}


def _best_effort(pool: Pool) -> set[str]:
    return {job.id for job in pool.snapshot.jobs if job.service_class is ServiceClass.BEST_EFFORT}


def _by_way_to_leave(pool: Pool, claimed: set[str]) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the jobs to suspend, and those that shrink or move."""
    best_effort = _best_effort(pool)
    return tuple(sorted(claimed & best_effort)), tuple(sorted(claimed - best_effort))


def _standing(pool: Pool, yielding: set[str], *, on_loan: bool, until: float) -> np.ndarray:
    """Return for every GPU whether a measurement that may last ``until`` then can use it, on on-loan
    servers or on owned ones. ``yielding``: jobs that may make way."""
    best_effort = _best_effort(pool)
    standing = np.full(len(pool.gpus), TAKEN, dtype=np.int8)
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
                standing[address] = BEST_EFFORT if pool.claims[address] in best_effort else GROWN
        first += server.gpus
    return standing


def _planned(policy: Policy, snapshot: Snapshot, job: Job) -> Decision | None:
    """Return the policy's plan of a snapshot.

    None if no plan can be computed: then the job is not measured there, and the pass goes on.
    """
    try:
        return policy.replan(snapshot)
    except FAILURES as error:
        log.exception("measurement_not_placed", job=job.pk, blocked=len(snapshot.blocked))
        note_not_measured(job.cluster, job, error, snapshot, timezone.now())
        return None


def _suspended(planned: Decision) -> set[str]:
    return {change.job_id for change in planned.changes if change.kind == ChangeKind.SUSPEND}
