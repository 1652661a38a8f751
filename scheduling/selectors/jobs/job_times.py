"""Times from a job's stored plan. Pure functions of the given row."""

from __future__ import annotations

import math
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from scheduling.choices import JobState
from scheduling.models import Job
from scheduling.moments import moment
from scheduling.stored_verdict import first_gpus_at


@dataclass(frozen=True, slots=True)
class PlannedPiece:
    """``gpus`` planned on [start, end), in UTC."""

    start: datetime
    end: datetime
    gpus: int


def planned_pieces(job: Job) -> list[PlannedPiece]:
    """Return the stored plan's pieces in order, without empty ones and those without an end in the
    calendar."""
    plan = job.plan or {}
    pieces = []
    for start, end, gpus in zip(
        plan.get("start", ()), plan.get("end", ()), plan.get("gpus", ()), strict=False
    ):
        begins, ends = _moment(start), _moment(end)
        if begins is not None and ends is not None and ends > begins:
            pieces.append(PlannedPiece(begins, ends, int(gpus)))
    return pieces


def planned_start_at(job: Job, now: datetime) -> datetime | None:
    """Return when the job started or is planned to get its first GPU; for a suspended job, its next one."""
    if job.started_at is not None and (job.state != JobState.SUSPENDED or job.finished()):
        return job.started_at
    pieces = ((each.start.timestamp(), each.end.timestamp(), each.gpus) for each in planned_pieces(job))
    return moment(first_gpus_at(pieces, now.timestamp())) or job.started_at


def planned_finish_at(job: Job) -> datetime | None:
    """Return when the job ended or is planned to finish; None without a plan, and for a declined job."""
    if job.state == JobState.DECLINED:
        return None
    if job.finished_at is not None:
        return job.finished_at
    return _moment((job.plan or {}).get("finish_at"))


def slack_seconds(job: Job, now: datetime) -> float | None:
    """Return the seconds between finish (planned or actual) and deadline; None for a job that did not and
    will not finish."""
    if job.finished_at is not None and job.state != JobState.COMPLETED:
        return None
    slack = job.slack_seconds(now)
    return slack if slack is not None and math.isfinite(slack) else None


def progress_share(job: Job) -> float:
    """Return the share of completed iterations, 0 to 1. A job that met its target early is complete."""
    if job.state == JobState.COMPLETED:
        return 1.0
    return min(1.0, job.iterations_done / job.max_iterations)


def _moment(seconds: Any) -> datetime | None:
    # A plan that does not finish stores infinity, as text or as null.
    return moment(seconds) if isinstance(seconds, int | float) else None
