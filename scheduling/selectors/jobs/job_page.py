"""Contents of a job's page, read from rows. Projections follow the stored plan."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from django.db.models import F, IntegerField, Max, Min, QuerySet
from django.db.models.functions import Mod

from cluster.selectors.outages import Stopped, outages_between
from projects.models import User
from scheduling.choices import AssignmentState, OfferState, Purpose
from scheduling.core.question.worker_counts import workers_by_gpus
from scheduling.models import (
    Artifact,
    Checkpoint,
    CurveLevel,
    Generation,
    Job,
    JobEvent,
    JobMetric,
    LogChunk,
    Offer,
)
from scheduling.selectors.jobs.environments import BuildQueue
from scheduling.selectors.jobs.job_times import PlannedPiece, planned_finish_at, planned_pieces
from scheduling.selectors.jobs.jobs_table import gpus_now
from scheduling.selectors.jobs.scaling_curve import curve
from scheduling.selectors.scope.hiding import mask_for
from scheduling.selectors.scope.visibility import visible_jobs

MAXIMUM_METRIC_POINTS = 800


@dataclass(frozen=True, slots=True)
class ProgressPoint:
    """Completed iterations at a time (UTC)."""

    at: datetime
    iterations: float


@dataclass(frozen=True, slots=True)
class JobProgress:
    """Measured progress, its projection along the plan, and the goal."""

    #: Reported progress, oldest first.
    measured: list[ProgressPoint]
    #: Progress by the stored plan.
    projected: list[ProgressPoint]
    #: Iteration after which the job ends.
    max_iterations: int
    deadline_at: datetime | None
    now: datetime


@dataclass(frozen=True, slots=True)
class GpuPhase:
    """A period of a generation on ``gpus`` GPUs; ``until`` is None while it lasts."""

    since: datetime
    until: datetime | None
    gpus: int
    reason: str


@dataclass(frozen=True, slots=True)
class GpusOverTime:
    """GPUs that the job had, is planned to have, and was promised at admission."""

    #: GPUs that the job had.
    actual: list[GpuPhase]
    #: GPUs by the stored plan.
    planned: list[PlannedPiece]
    #: GPUs by the plan at the time of the promise.
    promised: list[PlannedPiece]
    deadline_at: datetime | None
    now: datetime


@dataclass(frozen=True, slots=True)
class MetricSeries:
    """Values of each metric by iteration, thinned evenly, and the beginnings of generations."""

    iterations: list[int]
    #: One list by metric; None where it was not reported.
    values: dict[str, list[float | None]]
    iterations_per_second: list[float]
    gpus: list[int]
    #: (first iteration, GPUs) of every training generation that went live.
    generations: list[tuple[int, int]]


def visible_job(user: User, job_id: str) -> Job | None:
    """Return the job with its related rows, or None if the person may not see it."""
    return (
        visible_jobs(user)
        .select_related("project", "owner", "function_version__function", "curve", "resubmission_of")
        .annotate(gpus=gpus_now())
        .filter(pk=job_id)
        .first()
    )


def gpu_kinds(job: Job) -> list[tuple[str, bool]]:
    """Return (kind, emulated) of the GPUs that the job holds now."""
    held = (
        job.assignments.filter(state=AssignmentState.HELD)
        .values_list("gpu__kind", "gpu__emulated")
        .distinct()
    )
    return sorted(held)


def reserved_memory(job: Job) -> int | None:
    """Return the bytes of host memory reserved for each worker on the job's present number of GPUs, else
    on the fewest; None if not measured."""
    known = curve(job)
    levels = [level for level in known.levels if level.reserved_memory_bytes] if known else []
    now = [level for level in levels if known is not None and level.gpus == known.gpus_now]
    return next((level.reserved_memory_bytes for level in [*now, *levels]), None)


def open_offer(job: Job, now: datetime) -> Offer | None:
    """Return the offer that can still be accepted, if any."""
    return Offer.objects.filter(job=job, state=OfferState.OPEN, valid_until__gt=now).first()


def successor(job: Job) -> Job | None:
    """Return the job that was created when this one's offer was accepted."""
    return Job.objects.filter(accepted_offer__job=job).first()


def progress(job: Job, now: datetime) -> JobProgress:
    """Return measured progress and a projection along the plan at the curve's throughput."""
    measured = [
        ProgressPoint(at, float(iteration))
        for iteration, at in _thinned(job).values_list("iteration", "measured_at").order_by("measured_at")
    ]
    if job.started_at is not None:
        measured.insert(0, ProgressPoint(job.started_at, 0.0))
    end = job.finished_at or job.iterations_reported_at
    if job.started_at is not None and end is not None and (not measured or measured[-1].at <= end):
        measured.append(ProgressPoint(end, float(job.iterations_done)))
    return JobProgress(
        measured=measured,
        projected=[] if job.finished() else _projection(job, now),
        max_iterations=job.max_iterations,
        deadline_at=job.deadline_at,
        now=now,
    )


def _projection(job: Job, now: datetime) -> list[ProgressPoint]:
    finish = planned_finish_at(job)
    pieces = [piece for piece in planned_pieces(job) if piece.end > now]
    if finish is None or not pieces or finish <= now:
        return []
    rates = _rates(job)
    done = float(job.iterations_done)
    points = [ProgressPoint(now, done)]
    for piece in pieces:
        start = max(piece.start, now)
        end = min(piece.end, finish)
        if end <= start:
            break
        if start > points[-1].at:
            points.append(ProgressPoint(start, done))
        done = min(
            float(job.max_iterations), done + rates.get(piece.gpus, 0.0) * (end - start).total_seconds()
        )
        points.append(ProgressPoint(end, done))
    # The plan's forecast includes pauses, so the line ends where the plan ends.
    points = [point for point in points if point.at < finish]
    points.append(ProgressPoint(finish, float(job.max_iterations)))
    return points


def _rates(job: Job) -> dict[int, float]:
    if job.curve_id is None:
        return {}
    levels = CurveLevel.objects.filter(curve_id=job.curve_id)
    rates = dict(levels.values_list("gpus", "iterations_per_second"))
    held = workers_by_gpus(rates, job.global_batch_size)
    return {gpus: rates[workers] for gpus, workers in held.items()}


def gpus_over_time(user: User, job: Job, now: datetime) -> GpusOverTime:
    """Return the GPUs of past generations, those planned, and the verdict's minimum satisfactory share."""
    generations = list(
        Generation.objects.filter(job=job, purpose=Purpose.TRAINING, live_at__isnull=False).order_by(
            "live_at"
        )
    )
    mask = mask_for(user, [generation.reason for generation in generations])
    first = min((one.live_at for one in generations if one.live_at is not None), default=now)
    outages = outages_between(job.cluster_id, first, now)
    actual = [
        phase
        for generation in generations
        if generation.live_at is not None
        for phase in _phases(generation, generation.live_at, mask(generation.reason), outages)
    ]
    planned = [] if job.finished() else [piece for piece in planned_pieces(job) if piece.end > now]
    return GpusOverTime(
        actual=actual,
        planned=[PlannedPiece(max(piece.start, now), piece.end, piece.gpus) for piece in planned],
        promised=minimum_satisfactory_share(job),
        deadline_at=job.deadline_at,
        now=now,
    )


def _phases(
    generation: Generation, since: datetime, reason: str, outages: Sequence[Stopped]
) -> Iterator[GpuPhase]:
    """Yield a generation's periods, without those in which the platform was stopped."""
    end = generation.retired_at
    for stopped_at, started_at in outages:
        if started_at <= since or (end is not None and stopped_at >= end):
            continue
        if stopped_at > since:
            yield GpuPhase(since, stopped_at, generation.world_size, reason)
        since = started_at
    if end is None or end > since:
        yield GpuPhase(since, end, generation.world_size, reason)


def minimum_satisfactory_share(job: Job) -> list[PlannedPiece]:
    """Return the verdict's share (there in RFC 3339) as pieces; empty if there is none."""
    share = (job.verdict or {}).get("minimum_satisfactory_share") or []
    return [
        PlannedPiece(_parsed(piece["start"]), _parsed(piece["end"]), int(piece["gpus"]))
        for piece in share
        if piece.get("start") and piece.get("end")
    ]


def _parsed(text: str) -> datetime:
    moment = datetime.fromisoformat(text)
    return moment if moment.tzinfo else moment.replace(tzinfo=UTC)


def _thinned(job: Job, maximum_points: int = MAXIMUM_METRIC_POINTS) -> QuerySet[JobMetric]:
    metrics = JobMetric.objects.filter(job=job)
    span = metrics.aggregate(first=Min("iteration"), last=Max("iteration"))
    if span["last"] is None:
        return metrics
    stride = max(1, math.ceil((span["last"] - span["first"] + 1) / maximum_points))
    if stride == 1:
        return metrics
    kept = metrics.annotate(remainder=Mod(F("iteration"), stride, output_field=IntegerField()))
    return kept.filter(remainder=span["last"] % stride)


def metric_series(job: Job) -> MetricSeries:
    """Return the job's numeric metrics; other values that a function reports are not drawn."""
    rows = list(_thinned(job).order_by("iteration", "generation"))
    names = sorted({name for row in rows for name, value in row.values.items() if _is_number(value)})
    return MetricSeries(
        iterations=[row.iteration for row in rows],
        values={name: [_number_or_none(row.values.get(name)) for row in rows] for name in names},
        iterations_per_second=[row.iterations_per_second for row in rows],
        gpus=[row.gpus for row in rows],
        generations=list(
            Generation.objects.filter(job=job, purpose=Purpose.TRAINING, live_at__isnull=False)
            .order_by("number")
            .values_list("start_iteration", "world_size")
        ),
    )


def _is_number(value: object) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _number_or_none(value: object) -> float | None:
    if not _is_number(value):
        return None
    number = float(value)  # type: ignore[arg-type]
    return number if math.isfinite(number) else None


def newest_events(user: User, job: Job, limit: int = 200) -> list[JobEvent]:
    """Return the job's history, newest first, without ids of jobs that the person may not see."""
    events = list(JobEvent.objects.filter(job=job).order_by("-id")[:limit])
    mask = mask_for(user, [event.message for event in events])
    for event in events:
        event.message = mask(event.message)
    return events


def verdict_shown(user: User, job: Job) -> dict[str, Any]:
    """Return the verdict without ids of jobs that the person may not see; before a verdict, what the job
    waits for as its reason."""
    verdict = job.verdict or {"reason": BuildQueue().wait_of(job)}
    reason = str(verdict.get("reason") or "")
    return {**verdict, "reason": mask_for(user, [reason])(reason)}


def stored_checkpoints(job: Job, limit: int = 20) -> list[Checkpoint]:
    """Return complete checkpoints that still exist, newest first."""
    return list(
        Checkpoint.objects.filter(job=job, deleted_at__isnull=True, complete_at__isnull=False).order_by(
            "-iteration", "-id"
        )[:limit]
    )


def artifacts(job: Job) -> list[Artifact]:
    """Return the files that the completed job left."""
    return list(Artifact.objects.filter(job=job))


def newest_log_chunks(job: Job, limit: int = 200) -> list[LogChunk]:
    """Return the end of the log, in order."""
    return list(LogChunk.objects.filter(job=job).order_by("-id")[:limit])[::-1]
