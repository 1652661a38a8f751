"""Outcomes of promises: met, missed, or void with a reason. Void never counts as met."""

from __future__ import annotations

from datetime import datetime
from statistics import median

from scheduling.choices import PromiseOutcome, RecoveryKind, VoidReason
from scheduling.models import CurveLevel, Job, JobMetric, Recovery

#: `train()` is to blame for a miss only if it is slower than profiled by more than this factor.
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
        void_promise(job, VoidReason.FUNCTION_SLOWER)
    else:
        score_late(job)


def score_late(job: Job) -> None:
    """Set the outcome of an open promise that was missed through no fault of its function. The caller
    saves it."""
    if lost_beyond_reserve(job):
        void_promise(job, VoidReason.FAILURES)
    else:
        job.promise_outcome = PromiseOutcome.MISSED


def void_promise(job: Job, reason: VoidReason) -> None:
    """End an open promise without blame. The caller saves ``promise_outcome`` and ``void_reason``."""
    if job.promise_outcome == PromiseOutcome.OPEN:
        job.promise_outcome, job.void_reason = PromiseOutcome.VOID, reason


def lost_beyond_reserve(job: Job) -> bool:
    """Return whether the job lost more servers than its promise covers. Announced ends of
    servers do not count, since they were planned for."""
    failures = Recovery.objects.filter(job=job, kind=RecoveryKind.HARDWARE)
    if job.decided_at is not None:
        failures = failures.filter(detected_at__gte=job.decided_at)
    lost = sum(len(servers) for servers in failures.values_list("lost_servers", flat=True))
    return lost > job.cluster.reserve_servers


def function_slower_than_profile(job: Job) -> bool:
    """Return whether ``train()`` alone was slower than profiled at every level with enough samples."""
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
