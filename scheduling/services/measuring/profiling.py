"""Measures the scaling curve of a new function before admission, and more levels of a known one on idle
GPUs."""

from __future__ import annotations

from datetime import datetime

from django.db.models import Exists, OuterRef, Q, QuerySet
from django.utils import timezone

from cluster.choices import WorkState
from cluster.models import Cluster, Gpu
from projects.prepared import PreparedValues
from scheduling.choices import (
    PLANNED_STATES,
    UNDECIDED_STATES,
    CurveState,
    GenerationState,
    JobEventKind,
    JobState,
    Purpose,
)
from scheduling.core.question.quantities import gpus_text
from scheduling.models import CurveLevel, Environment, Generation, Job, ScalingCurve
from scheduling.models.functions import UNREAD_OF_VERSION
from scheduling.services.generations.generations import create_generation
from scheduling.services.generations.lifecycle import suspend
from scheduling.services.generations.server_ports import NoFreePort
from scheduling.services.measuring.measured_levels import (
    GIVEN_UP,
    MAXIMUM_ATTEMPTS,
    attempts_on,
    fastest_known,
    more_can_be_measured,
    timed_out_curves,
    top_level,
    with_broken_off,
)
from scheduling.services.measuring.measuring_turns import forget_turn, note_made_way
from scheduling.services.measuring.quota_waits import forget_quota
from scheduling.services.measuring.room_to_measure import Measurement, RoomToMeasure
from scheduling.services.rows.borrowed import borrowed_by, borrowing_kind, curve_on
from scheduling.services.rows.records import Move, move, move_all, record
from scheduling.services.verdicts.incidents import jobs_without_port, note_no_port, note_ports
from scheduling.services.verdicts.quotas import profiling_refusal

#: Limit of waiting jobs that get the verdict "function is being measured" in one pass.
MOST_TOLD = 1_000
#: Running jobs examined for something to measure, in order of submission.
MOST_LOOKED_AT = 20
#: Limit of curves that a pass checks against their project's quota before it measures one.
MOST_CURVES_LOOKED_AT = 1_000
#: Longest-waiting undecided jobs examined; if these find no room, later ones hardly do.
MOST_WAITING_LOOKED_AT = 3


def undecided_jobs(cluster: Cluster | int) -> QuerySet[Job]:
    """Return newcomers without a verdict. Most passes have none."""
    return Job.objects.filter(cluster=cluster, state__in=UNDECIDED_STATES)


def curves_being_measured() -> QuerySet[ScalingCurve]:
    """Return curves whose measurement is under way, or was broken off."""
    return ScalingCurve.objects.filter(state=CurveState.MEASURING)


_MEASURING = PreparedValues(lambda: curves_being_measured().order_by().values_list("pk")[:1])


_UNDECIDED = PreparedValues(lambda cluster_id: undecided_jobs(cluster_id).order_by().values_list("pk")[:1])


def any_undecided(cluster: Cluster) -> bool:
    """Return whether there are `undecided_jobs`."""
    return _UNDECIDED.any(cluster.pk)


def settle_broken_off(cluster: Cluster) -> int:
    """Make a curve ready with what was measured if its measurement ended early, for whatever reason; without
    any level the curve is unknown again.

    Return the number of curves. The caller holds the cluster's row.
    """
    if not _MEASURING.any():  # as in most passes
        return 0
    under_way = Generation.objects.filter(job__cluster=cluster, purpose=Purpose.PROFILING).exclude(
        state=GenerationState.RETIRED
    )
    # A curve of another plan family than its job's belongs to no job yet; its measurements name it.
    here = Q(jobs__cluster=cluster) | Q(generations__job__cluster=cluster)
    ended = (
        ScalingCurve.objects.filter(here, state=CurveState.MEASURING)
        .exclude(pk__in=under_way.filter(curve__isnull=False).values("curve_id"))
        .exclude(jobs__generations__in=under_way)
        .distinct()
    )
    known = dict(ended.values_list("pk", Exists(CurveLevel.objects.filter(curve=OuterRef("pk")))))
    for state, measured in ((CurveState.READY, True), (CurveState.UNKNOWN, False)):
        curves = [curve_id for curve_id, has_levels in known.items() if has_levels == measured]
        ScalingCurve.objects.filter(pk__in=curves).update(state=state)
    return len(known)


def decide_by(job: Job) -> datetime | None:
    """Return when an unmeasured job is declined at the latest: at half its time, since a later promise
    would hardly be possible. None for a job without a firm deadline."""
    if job.deadline_at is None or job.service_class != "slo":
        return None
    return job.submitted_at + (job.deadline_at - job.submitted_at) / 2


def next_measurement(room: RoomToMeasure, *, undecided: bool) -> Measurement | None:
    """Return the measurement to start now: for the longest-waiting undecided job, else more levels of a
    running job's curve. ``undecided``: whether there are undecided jobs."""
    if undecided:
        found = _measurement_for_undecided(room)
        if found is not None or undecided_jobs(room.cluster).filter(awaits_levels=False).exists():
            return found
    for job in _extendable_jobs(room.cluster):
        above = top_level(job.curve) if job.curve else 0
        found = room.block_for(job, above=above, idle_gpus_alone=above > 0)
        if found is not None:
            return found
    return _measurement_on_loan(room)


def _measurement_for_undecided(room: RoomToMeasure) -> Measurement | None:
    """Return one for the longest-waiting job without a curve, else for one that waits for more levels."""
    looked_at = 0
    waiting_jobs = _waiting_jobs(room.cluster)
    room.waiting.update(job_id for job_id, _ in waiting_jobs)
    for job_id, project_id in waiting_jobs:
        if room.is_refused(job_id, project_id):
            continue
        waiting = Job.objects.select_related("curve", "function_version", "project")
        found = room.block_for(waiting.defer(UNREAD_OF_VERSION).get(pk=job_id), above=0)
        looked_at += 1
        if found is not None:
            return found
        if looked_at >= MOST_WAITING_LOOKED_AT:
            break
    for job in _jobs_awaiting_levels(room):
        assert job.curve is not None
        found = room.block_for(job, above=top_level(job.curve))
        if found is not None:
            return found
    return None


def _measurement_on_loan(room: RoomToMeasure) -> Measurement | None:
    """Return one for the first unpromised job that was never measured on the kind of GPU on loan, if some
    of these are idle."""
    cluster = room.cluster
    if not _LENT.any(cluster.pk):
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
        if known is not None and attempts_on(job, known) >= MAXIMUM_ATTEMPTS:
            continue
        if profiling_refusal(job.project, room.now) or _is_measuring(job):
            continue
        found = room.block_for(job, above=0, kind=borrowed.kind, idle_gpus_alone=True)
        if found is not None:
            return found
    return None


def _is_measuring(job: Job) -> bool:
    return job.generations.filter(purpose=Purpose.PROFILING).exclude(state=GenerationState.RETIRED).exists()


def start_measurement(measurement: Measurement, cluster: Cluster, epoch: int) -> Generation | None:
    """Start a measurement. Return None if a server has no free port; then it is tried again later.

    The caller holds the cluster's row and has checked that no fact moved.
    """
    job = measurement.job
    undecided = job.state in UNDECIDED_STATES
    forget_quota(job)
    forget_turn(job)
    gpus = measurement.pool.gpu_rows(measurement.block)
    generation = create_generation(
        job,
        [gpus[address] for address in measurement.block],
        epoch=epoch,
        purpose=Purpose.PROFILING,
        reason="measures its scaling curve",
        profile={
            "levels": list(measurement.levels),
            "seconds_per_level": cluster.profile_seconds_per_level,
            "max_seconds": cluster.profile_maximum_seconds,
            "known": fastest_known(measurement.curve),
        },
        curve=measurement.curve,
    )
    if isinstance(generation, NoFreePort):
        note_no_port(cluster, job, generation.message, timezone.now())
        return None
    note_ports(cluster, {job.pk}, timezone.now())
    ScalingCurve.objects.filter(pk=measurement.curve.pk).update(state=CurveState.MEASURING)
    for displaced in Job.objects.filter(pk__in=measurement.displaced).order_by("pk"):
        note_made_way(displaced, job)
        suspend(displaced, f"a new function is measured for {job.pk}")
    for shrinking in Job.objects.filter(pk__in=measurement.shrinking).order_by("pk"):
        note_made_way(shrinking, job)
    text = f"Its speed is measured on up to {gpus_text(measurement.levels[-1])}."
    if undecided and job.state == JobState.SUBMITTED:
        move(job, JobState.PROFILING, text)
    else:
        record(job, JobEventKind.PROFILING, text)
    others = Job.objects.filter(curve=measurement.curve, state=JobState.SUBMITTED).order_by("submitted_at")
    text_for_companions = f"Its speed is being measured with job {job.pk}."
    companions = others.only("state", "cluster_id", "finished_at")[:MOST_TOLD]
    move_all([Move(other, JobState.PROFILING, text_for_companions, {}) for other in companions], fields=[])
    return generation


def _waiting_jobs(cluster: Cluster) -> list[tuple[str, int]]:
    """Return one undecided job for each unknown curve that is not being measured, with its project,
    longest-waiting first."""
    measuring = (
        Generation.objects.filter(job__cluster=cluster, purpose=Purpose.PROFILING, job__curve__isnull=False)
        .exclude(state=GenerationState.RETIRED)
        .values("job__curve_id")
    )
    # Requirements without a row are installed with the measurement.
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
        # Given-up jobs are settled at the start of a pass; a measurement may have ended since.
        .exclude(curve__in=timed_out_curves())
    )
    given_up = with_broken_off(undecided_jobs(cluster)).filter(GIVEN_UP).order_by().values("pk")
    waiting = waiting.exclude(pk__in=given_up)
    first = waiting.order_by("curve_id", "submitted_at", "id").distinct("curve_id").values("pk")
    jobs = Job.objects.filter(pk__in=first).order_by("submitted_at", "id")
    return list(jobs.values_list("pk", "project_id")[:MOST_CURVES_LOOKED_AT])


def _jobs_awaiting_levels(room: RoomToMeasure) -> list[Job]:
    """Return one job for each curve that needs more levels and is not being measured, longest-waiting
    first."""
    jobs = Job.objects.filter(
        cluster=room.cluster, state__in=UNDECIDED_STATES, awaits_levels=True, curve__state=CurveState.READY
    ).select_related("curve", "function_version", "project")
    jobs = jobs.defer(UNREAD_OF_VERSION)
    chosen: dict[int, Job] = {}
    for job in jobs.order_by("submitted_at", "id")[:MOST_LOOKED_AT]:
        curve = job.curve
        if curve is not None and curve.pk not in chosen and more_can_be_measured(job, curve):
            room.waiting.add(job.pk)
            if not room.is_refused(job.pk, job.project_id):
                chosen[curve.pk] = job
    return list(chosen.values())[:MOST_WAITING_LOOKED_AT]


def jobs_with_more_to_measure(cluster_id: int) -> QuerySet[Job]:
    """Return accepted jobs whose curve lacks levels."""
    return Job.objects.filter(
        cluster=cluster_id, state__in=PLANNED_STATES, curve__state=CurveState.READY, curve__complete=False
    )


_EXTENDABLE = PreparedValues(
    lambda cluster_id: jobs_with_more_to_measure(cluster_id).order_by().values_list("pk")[:1]
)
_LENT = PreparedValues(lambda cluster_id: Gpu.objects.on_loan(cluster_id).order_by().values_list("pk")[:1])


def _extendable_jobs(cluster: Cluster) -> list[Job]:
    if not _EXTENDABLE.any(cluster.pk):  # as in most passes
        return []
    jobs = jobs_with_more_to_measure(cluster.pk)
    busy = Generation.objects.filter(job__cluster=cluster, purpose=Purpose.PROFILING).exclude(
        state=GenerationState.RETIRED
    )
    if busy.exists():
        return []
    found = jobs.select_related("curve", "function_version", "project").defer(UNREAD_OF_VERSION)
    return [
        job
        for job in found.order_by("submitted_at", "id")[:MOST_LOOKED_AT]
        if job.curve is not None and attempts_on(job, job.curve) < MAXIMUM_ATTEMPTS
    ]
