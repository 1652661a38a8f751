"""How a promise ended: met, missed, or void with a reason (contracts 2). Void never counts as met."""

from __future__ import annotations

from datetime import datetime
from statistics import median

from scheduling.choices import PromiseOutcome, VoidReason
from scheduling.models import CurveLevel, Job, JobMetric

#: `train()` must be slower than profiled by more than this before it is to blame for a miss.
SLOWER_FACTOR = 1.1


def score_promise(job: Job, stored_at: datetime) -> None:
    """Set outcome and lateness of a job whose final weights were stored at ``stored_at``. The caller saves
    it."""
    on_time = job.deadline_at is None or stored_at < job.deadline_at
    job.late = not on_time
    if job.promise_outcome != PromiseOutcome.OPEN:
        return
    if on_time:
        job.promise_outcome = PromiseOutcome.MET
    elif function_slower_than_profile(job):
        job.promise_outcome, job.void_reason = PromiseOutcome.VOID, VoidReason.FUNCTION_SLOWER
    else:
        job.promise_outcome = PromiseOutcome.MISSED


def function_slower_than_profile(job: Job) -> bool:
    """Whether ``train()`` alone was slower than profiled at every level that the job ran at long enough to
    tell."""
    profiled = dict(
        CurveLevel.objects.filter(curve=job.curve_id, profiled_train_seconds__gt=0).values_list(
            "gpus", "profiled_train_seconds"
        )
    )
    measured: dict[int, list[float]] = {}
    for gpus, seconds in JobMetric.objects.filter(job=job, train_seconds__gt=0).values_list(
        "gpus", "train_seconds"
    ):
        measured.setdefault(gpus, []).append(seconds)
    judged = {
        gpus: median(seconds) / profiled[gpus]
        for gpus, seconds in measured.items()
        if gpus in profiled and len(seconds) >= 5
    }
    return bool(judged) and min(judged.values()) > SLOWER_FACTOR
