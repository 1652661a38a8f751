"""Measuring the scaling curve of a new function before it is admitted, and more of a known one on idle
GPUs."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta

import numpy as np
import structlog
from django.db.models import Count, Max, Q, QuerySet
from django.utils import timezone

from cluster.choices import WorkState
from cluster.models import Cluster, Gpu
from projects.models import Project
from scheduling.choices import (
    PLANNED_STATES,
    UNDECIDED_STATES,
    CurveState,
    GenerationState,
    JobState,
    Purpose,
    RetireReason,
)
from scheduling.core.placement.measuring import BEST_EFFORT, FREE, TAKEN, measuring_blocks
from scheduling.core.plans.release import measured_by
from scheduling.core.question.snapshot import BlockedGpus, ServiceClass, Snapshot
from scheduling.core.question.worker_counts import measurable_levels
from scheduling.models import CurveLevel, Environment, Generation, Job, ScalingCurve
from scheduling.models.functions import UNREAD_OF_VERSION
from scheduling.policies import Policy
from scheduling.services.blocking import release_bounds
from scheduling.services.borrowed import borrowed_by, borrowing_kind, curve_made_on, curve_on
from scheduling.services.generations import NoFreePort, create_generation
from scheduling.services.incidents import jobs_without_port, note_no_port, note_not_measured, note_ports
from scheduling.services.isolating import FAILURES
from scheduling.services.lifecycle import suspend
from scheduling.services.quotas import profiling_left
from scheduling.services.records import Move, move, move_all, record
from scheduling.services.snapshots import Pool, pool_snapshot
from scheduling.services.unfit_levels import largest_unfit_level

log = structlog.get_logger(__name__)

#: How often a measurement may be broken off before the job is given up.
MAXIMUM_ATTEMPTS = 4
#: How often the measurements of a curve may take too long before its jobs are given up, and for how long that
#: is remembered.
MAXIMUM_TIMEOUTS = 2
TIMEOUTS_COUNT_FOR = timedelta(hours=1)
#: Waiting jobs of one function that are told at once that it is being measured.
MOST_TOLD = 1_000
#: Running jobs looked at, in the order of submission, for something to measure beside them.
MOST_LOOKED_AT = 20
#: Curves that are waited for, of which a pass looks for one that its project may still have measured.
MOST_CURVES_LOOKED_AT = 1_000
#: Undecided jobs looked at, the longest waiting: what one finds no room for, the next ones hardly do.
MOST_WAITING_LOOKED_AT = 3


@dataclass(frozen=True)
class Measurement:
    """A measurement that may start: its job, its block, and the best-effort jobs that make room."""

    job: Job
    pool: Pool
    block: tuple[int, ...]
    levels: tuple[int, ...]
    displaced: tuple[str, ...]
    curve: ScalingCurve


def undecided_jobs(cluster: Cluster) -> QuerySet[Job]:
    """Newcomers without a verdict. In most passes there are none, and little has to be looked at."""
    return Job.objects.filter(cluster=cluster, state__in=UNDECIDED_STATES)


def timed_out_curves() -> set[int]:
    """Curves whose measurements, for whichever job, were ended too often because they took too long."""
    measurements = Generation.objects.filter(
        curve__isnull=False,
        purpose=Purpose.PROFILING,
        retired_because=RetireReason.MEASURING_TIMEOUT,
        retired_at__gt=timezone.now() - TIMEOUTS_COUNT_FOR,
    )
    times = measurements.values("curve_id").annotate(times=Count("pk")).filter(times__gte=MAXIMUM_TIMEOUTS)
    return set(times.values_list("curve_id", flat=True))


def settle_broken_off(cluster: Cluster) -> int:
    """Let what was measured count where a measurement ended before it was through, for whatever reason.

    Returns the number of curves. The caller holds the cluster's row.
    """
    if not ScalingCurve.objects.filter(state=CurveState.MEASURING).exists():  # as in most passes
        return 0
    under_way = Generation.objects.filter(job__cluster=cluster, purpose=Purpose.PROFILING).exclude(
        state=GenerationState.RETIRED
    )
    ended = ScalingCurve.objects.filter(
        state=CurveState.MEASURING, levels__isnull=False, jobs__cluster=cluster
    ).exclude(Q(pk__in=under_way.filter(curve__isnull=False).values("curve_id")))
    curves = list(ended.exclude(jobs__generations__in=under_way).values_list("pk", flat=True).distinct())
    return ScalingCurve.objects.filter(pk__in=curves).update(state=CurveState.READY) if curves else 0


def decide_by(job: Job) -> datetime | None:
    """The latest time at which a job without a curve is declined: half its time, as nothing could be promised
    later."""
    if job.deadline_at is None or job.service_class != "slo":
        return None
    return job.submitted_at + (job.deadline_at - job.submitted_at) / 2


def next_measurement(
    cluster: Cluster, policy: Policy, now: datetime, *, undecided: bool
) -> Measurement | None:
    """The measurement to start now: for the longest-waiting undecided job, else more levels of a running
    job's curve. ``undecided``: whether there are undecided jobs at all."""
    if undecided:
        found = _measurement_for_undecided(cluster, policy, now)
        if found is not None or undecided_jobs(cluster).filter(awaits_levels=False).exists():
            return found
    for job in _extendable_jobs(cluster):
        above = top_level(job.curve) if job.curve else 0
        found = find_block(cluster, job, policy, now, above=above, spare_best_effort=above > 0)
        if found is not None:
            return found
    return _measurement_on_loan(cluster, policy, now)


def _measurement_for_undecided(cluster: Cluster, policy: Policy, now: datetime) -> Measurement | None:
    """For the longest-waiting job without a curve, else for one that waits for more levels of its curve."""
    looked_at = 0
    quota_left: dict[int, bool] = {}
    for job_id, project_id in _waiting_jobs(cluster):
        if project_id not in quota_left:
            quota_left[project_id] = profiling_left(Project.objects.get(pk=project_id), now)
        if not quota_left[project_id]:
            continue
        waiting = Job.objects.select_related("curve", "function_version", "project")
        found = find_block(cluster, waiting.defer(UNREAD_OF_VERSION).get(pk=job_id), policy, now, above=0)
        looked_at += 1
        if found is not None:
            return found
        if looked_at >= MOST_WAITING_LOOKED_AT:
            break
    for job in _jobs_awaiting_levels(cluster):
        assert job.curve is not None
        found = find_block(cluster, job, policy, now, above=top_level(job.curve))
        if found is not None:
            return found
    return None


def _measurement_on_loan(cluster: Cluster, policy: Policy, now: datetime) -> Measurement | None:
    """For the first job without a promise that was never measured on the kind of GPU on loan, where some of
    these are idle."""
    if not Gpu.objects.on_loan(cluster).exists():
        return None
    borrowing = borrowing_kind(cluster)
    borrowed = borrowed_by(cluster, borrowing) if borrowing else None
    if borrowing is None or borrowed is None or borrowed.kind == borrowing:
        return None
    jobs = Job.objects.filter(
        cluster=cluster,
        state__in=PLANNED_STATES,
        promised=False,
        curve__gpu_kind=borrowing,
        paused_by_owner=False,
    ).select_related("curve", "function_version", "project")
    jobs = jobs.defer(UNREAD_OF_VERSION)
    for job in jobs.order_by("submitted_at", "id")[:MOST_LOOKED_AT]:
        known = curve_on(job, borrowed.kind)
        if known is not None and known.state != CurveState.UNKNOWN:
            continue
        if known is not None and _attempts(job, known) >= MAXIMUM_ATTEMPTS:
            continue
        if not profiling_left(job.project, now) or _is_measuring(job):
            continue
        found = find_block(cluster, job, policy, now, above=0, kind=borrowed.kind, spare_best_effort=True)
        if found is not None:
            return found
    return None


def _is_measuring(job: Job) -> bool:
    return job.generations.filter(purpose=Purpose.PROFILING).exclude(state=GenerationState.RETIRED).exists()


def start_measurement(measurement: Measurement, cluster: Cluster, epoch: int) -> Generation | None:
    """Start it; None where a server has no port left for it: then it is tried again after a while.

    The caller holds the cluster's row and has checked that nothing moved.
    """
    job = measurement.job
    undecided = job.state in UNDECIDED_STATES
    generation = create_generation(
        job,
        [measurement.pool.gpus[address] for address in measurement.block],
        epoch=epoch,
        purpose=Purpose.PROFILING,
        reason="measures its scaling curve",
        profile={
            "levels": list(measurement.levels),
            "seconds_per_level": cluster.profile_seconds_per_level,
            "max_seconds": cluster.profile_maximum_seconds,
            "known": _fastest_known(measurement.curve),
        },
    )
    if isinstance(generation, NoFreePort):
        note_no_port(cluster, job, generation.message, timezone.now())
        return None
    note_ports(cluster, {job.pk}, timezone.now())
    ScalingCurve.objects.filter(pk=measurement.curve.pk).update(state=CurveState.MEASURING)
    for job_id in measurement.displaced:
        displaced = Job.objects.get(pk=job_id)
        suspend(displaced, f"a new function is measured for {job.pk}")
    text = f"Its speed is measured on up to {measurement.levels[-1]} GPUs."
    if undecided and job.state == JobState.SUBMITTED:
        move(job, JobState.PROFILING, text)
    else:
        record(job, "profiling", text)
    others = Job.objects.filter(curve=measurement.curve, state=JobState.SUBMITTED).order_by("submitted_at")
    told = f"Its speed is being measured with job {job.pk}."
    companions = others.only("state", "cluster_id", "finished_at")[:MOST_TOLD]
    move_all([Move(other, JobState.PROFILING, told, {}) for other in companions], fields=[])
    return generation


def _waiting_jobs(cluster: Cluster) -> list[tuple[str, int]]:
    """One undecided job for each curve that is unknown and not being measured, with its project,
    longest-waiting first."""
    measuring = (
        Generation.objects.filter(job__cluster=cluster, purpose=Purpose.PROFILING, job__curve__isnull=False)
        .exclude(state=GenerationState.RETIRED)
        .values("job__curve_id")
    )
    # Without a row they are installed with the measurement.
    missing = Environment.objects.exclude(state=WorkState.DONE).values("pk")
    waiting = (
        Job.objects.filter(
            cluster=cluster,
            state__in=UNDECIDED_STATES,
            curve__state__in=[CurveState.UNKNOWN, CurveState.MEASURING],
        )
        .exclude(pk__in=jobs_without_port(cluster, timezone.now()))
        .exclude(curve__in=measuring)
        .exclude(function_version__requirements_digest__in=missing)
    )
    first = waiting.order_by("curve_id", "submitted_at", "id").distinct("curve_id").values("pk")
    jobs = Job.objects.filter(pk__in=first).order_by("submitted_at", "id")
    return list(jobs.values_list("pk", "project_id")[:MOST_CURVES_LOOKED_AT])


def top_level(curve: ScalingCurve) -> int:
    """The largest level that was measured; 0 where none was."""
    return max(curve.levels.values_list("gpus", flat=True), default=0)


def known_up_to(curve: ScalingCurve) -> int:
    """The largest level of which anything is known: its speed, or that it does not fit."""
    return max(top_level(curve), largest_unfit_level(curve))


def _fastest_known(curve: ScalingCurve) -> float | None:
    """Iterations a second that more GPUs have to exceed: they are not measured again, since slow iterations
    would leave no time for what is to be measured."""
    return curve.levels.aggregate(fastest=Max("iterations_per_second"))["fastest"]


def top_levels(curve_ids: Collection[int]) -> dict[int, int]:
    """`top_level` of many curves in one query, by the curve's key; those without levels are left out."""
    levels = CurveLevel.objects.filter(curve__in=curve_ids).order_by()
    return dict(levels.values_list("curve").annotate(top=Max("gpus")))


def more_can_be_measured(job: Job, curve: ScalingCurve) -> bool:
    """Whether nothing but time speaks against measuring more levels: not how often that was broken off
    already."""
    return _attempts(job, curve) < MAXIMUM_ATTEMPTS and curve.pk not in timed_out_curves()


def _jobs_awaiting_levels(cluster: Cluster) -> list[Job]:
    """One job for each curve of which more levels are waited for and none is being measured, longest-waiting
    first."""
    jobs = Job.objects.filter(
        cluster=cluster, state__in=UNDECIDED_STATES, awaits_levels=True, curve__state=CurveState.READY
    ).select_related("curve", "function_version", "project")
    jobs = jobs.defer(UNREAD_OF_VERSION)
    chosen: dict[int, Job] = {}
    now = timezone.now()
    for job in jobs.order_by("submitted_at", "id")[:MOST_LOOKED_AT]:
        curve = job.curve
        if curve is not None and curve.pk not in chosen and more_can_be_measured(job, curve):
            if profiling_left(job.project, now):
                chosen[curve.pk] = job
    return list(chosen.values())[:MOST_WAITING_LOOKED_AT]


def _extendable_jobs(cluster: Cluster) -> list[Job]:
    jobs = Job.objects.filter(
        cluster=cluster, state__in=PLANNED_STATES, curve__state=CurveState.READY, curve__complete=False
    )
    if not jobs.exists():
        return []
    busy = Generation.objects.filter(job__cluster=cluster, purpose=Purpose.PROFILING).exclude(
        state=GenerationState.RETIRED
    )
    if busy.exists():
        return []
    found = jobs.select_related("curve", "function_version", "project").defer(UNREAD_OF_VERSION)
    return [
        job
        for job in found.order_by("submitted_at", "id")[:MOST_LOOKED_AT]
        if job.curve is not None and _attempts(job, job.curve) < MAXIMUM_ATTEMPTS
    ]


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


def _attempts(job: Job, curve: ScalingCurve) -> int:
    """Measurements of the curve for this job that were broken off."""
    broken = job.generations.filter(
        Q(curve=curve) | Q(curve__isnull=True), purpose=Purpose.PROFILING, state=GenerationState.RETIRED
    )
    return broken.exclude(retired_because=RetireReason.MEASURED).count()


def attempts_of(jobs: Sequence[Job]) -> dict[tuple[str, int | None], int]:
    """Measurements that were broken off, by job id and curve (None: of before curves were noted)."""
    broken = Generation.objects.filter(
        job__in=[job.pk for job in jobs], purpose=Purpose.PROFILING, state=GenerationState.RETIRED
    ).exclude(retired_because=RetireReason.MEASURED)
    counts = broken.order_by().values_list("job", "curve").annotate(count=Count("pk"))
    return {(job_id, curve_id): count for job_id, curve_id, count in counts}
