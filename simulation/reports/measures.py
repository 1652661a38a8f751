"""What each job came to, and averages over time: the measures that summary and figures share."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from scheduling.core.question.snapshot import FloatArray, ServiceClass
from simulation.outcome import BoolArray, ClusterHistory, JobEnd, JobOutcomes, RunOutcome


class Fate(StrEnum):
    """What a job with a deadline came to. Every such job has exactly one fate."""

    MET = "met"
    MISSED = "missed"
    DECLINED = "declined"
    VOID = "void"
    OPEN = "open"


def has_class(jobs: JobOutcomes, service_class: ServiceClass) -> BoolArray:
    """Which jobs are of a service class."""
    return np.array([each == service_class for each in jobs.service_class], dtype=bool)


def has_end(jobs: JobOutcomes, end: JobEnd) -> BoolArray:
    """Which jobs ended in a way."""
    return np.array([each == end for each in jobs.end], dtype=bool)


def is_promised(jobs: JobOutcomes) -> BoolArray:
    """Which jobs were promised their deadline."""
    return np.array(jobs.promised, dtype=bool)


def is_void(jobs: JobOutcomes) -> BoolArray:
    """Whose promise became void (by the function, its owner, or failures beyond the reserve)."""
    return np.array([reason != "" for reason in jobs.void_reason], dtype=bool)


def is_decided(jobs: JobOutcomes) -> BoolArray:
    """Which jobs were admitted or declined; what has started was admitted, whoever recorded no decision."""
    return np.isfinite(jobs.decided_at) | np.isfinite(jobs.started_at) | has_end(jobs, JobEnd.DECLINED)


def fates(outcome: RunOutcome) -> dict[Fate, BoolArray]:
    """Which jobs came to which fate, among those with a deadline (``slo`` and ``soft``).

    Void comes first: a void promise is never counted as met, even where its job was in time. ``OPEN`` is
    a job that a stopped run left unfinished before its deadline; whatever else is not on time was missed,
    also a job that failed, was cancelled, or that a run which went to its end could never run.
    """
    jobs = outcome.jobs
    dated = ~has_class(jobs, ServiceClass.BEST_EFFORT)
    void = dated & is_void(jobs)
    declined = dated & ~void & has_end(jobs, JobEnd.DECLINED)
    met = dated & ~void & ~declined & jobs.on_time
    not_yet = has_end(jobs, JobEnd.UNFINISHED) & (jobs.deadline_at >= outcome.end_at)
    still_open = dated & ~void & ~declined & ~met & not_yet & outcome.interrupted
    return {
        Fate.MET: met,
        Fate.MISSED: dated & ~void & ~declined & ~met & ~still_open,
        Fate.DECLINED: declined,
        Fate.VOID: void,
        Fate.OPEN: still_open,
    }


def completion_seconds(jobs: JobOutcomes) -> FloatArray:
    """Job completion times (JCT) in seconds: completion minus submission, of completed jobs of any class."""
    completed = has_end(jobs, JobEnd.COMPLETED)
    return (jobs.completed_at - jobs.submitted_at)[completed]


def queuing_seconds(jobs: JobOutcomes) -> FloatArray:
    """Queuing times in seconds: first start minus submission, of completed jobs of any class."""
    completed = has_end(jobs, JobEnd.COMPLETED) & np.isfinite(jobs.started_at)
    return (jobs.started_at - jobs.submitted_at)[completed]


def waiting_seconds(jobs: JobOutcomes) -> FloatArray:
    """Time without GPUs in seconds, before the first start and after preemptions, of completed jobs of any
    class."""
    return jobs.waiting_seconds[has_end(jobs, JobEnd.COMPLETED)]


def slack_seconds(jobs: JobOutcomes) -> FloatArray:
    """Deadline minus completion in seconds, of promised jobs that completed and whose promise held; negative
    is late."""
    chosen = is_promised(jobs) & ~is_void(jobs) & has_end(jobs, JobEnd.COMPLETED)
    return (jobs.deadline_at - jobs.completed_at)[chosen & np.isfinite(jobs.deadline_at)]


def decision_milliseconds(outcome: RunOutcome) -> FloatArray:
    """Wall time of each decision in milliseconds, NaN for instants at which nothing was decided."""
    seconds = outcome.cluster.decision_seconds
    return np.where(seconds > 0.0, seconds * 1000.0, np.nan)


def begin_at(outcome: RunOutcome) -> float:
    """When the run began, in the trace's seconds: its first planning instant, without any its first
    submission."""
    for times in (outcome.cluster.time, outcome.jobs.submitted_at):
        if times.size:
            return float(times[0])
    return outcome.end_at


def simulated_seconds(outcome: RunOutcome) -> float:
    """How much time the run simulated."""
    return outcome.end_at - begin_at(outcome)


def span_seconds(outcome: RunOutcome) -> FloatArray:
    """How long each row of the cluster's history lasted; the last one lasts until the end of the run."""
    time = outcome.cluster.time
    if time.size == 0:
        return np.zeros(0)
    return np.maximum(np.diff(np.append(time, max(outcome.end_at, float(time[-1])))), 0.0)


def gpus_used(cluster: ClusterHistory) -> FloatArray:
    """GPUs held by jobs, promised or not."""
    return (cluster.gpus_promised + cluster.gpus_unpromised).astype(np.float64)


def time_average(values: FloatArray, seconds: FloatArray) -> float | None:
    """The mean of a step function over time. Spans without a value count for nothing; None without any
    span."""
    known = np.isfinite(values)
    total = float(seconds[known].sum())
    return float((values[known] * seconds[known]).sum() / total) if total > 0.0 else None


def first_hours(outcome: RunOutcome, hours: float) -> FloatArray:
    """How much of each row of the cluster's history lies in the run's first hours, in seconds."""
    left = begin_at(outcome) + hours * 3600.0 - outcome.cluster.time
    return np.clip(left, 0.0, span_seconds(outcome))


def mean_utilisation(outcome: RunOutcome) -> float | None:
    """GPU-seconds held by jobs over GPU-seconds that the cluster had; None when it had none."""
    seconds = span_seconds(outcome)
    had = float((outcome.cluster.gpus * seconds).sum())
    return float((gpus_used(outcome.cluster) * seconds).sum() / had) if had > 0.0 else None
