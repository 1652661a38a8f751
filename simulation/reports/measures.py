"""Fates of jobs, and averages over time: the measures that summary and figures share."""

from __future__ import annotations

from enum import StrEnum

import numpy as np

from scheduling.core.question.snapshot import FloatArray, ServiceClass
from simulation.outcome import BoolArray, ClusterHistory, JobEnd, JobOutcomes, RunOutcome


class Fate(StrEnum):
    """Result of a job's deadline. Every job with a deadline has exactly one fate."""

    MET = "met"
    MISSED = "missed"
    DECLINED = "declined"
    VOID = "void"
    OPEN = "open"


def has_class(jobs: JobOutcomes, service_class: ServiceClass) -> BoolArray:
    """Mark the jobs of a service class."""
    return np.array([each == service_class for each in jobs.service_class], dtype=bool)


def has_end(jobs: JobOutcomes, end: JobEnd) -> BoolArray:
    """Mark the jobs with this end."""
    return np.array([each == end for each in jobs.end], dtype=bool)


def is_promised(jobs: JobOutcomes) -> BoolArray:
    """Mark the jobs whose deadline was promised."""
    return np.array(jobs.promised, dtype=bool)


def is_void(jobs: JobOutcomes) -> BoolArray:
    """Mark jobs whose promise became void (by the function, its owner, or failures beyond the reserve)."""
    return np.array([reason != "" for reason in jobs.void_reason], dtype=bool)


def is_decided(jobs: JobOutcomes) -> BoolArray:
    """Mark the jobs that were admitted or declined; a started job was admitted, even without a record."""
    return np.isfinite(jobs.decided_at) | np.isfinite(jobs.started_at) | has_end(jobs, JobEnd.DECLINED)


def fates(outcome: RunOutcome) -> dict[Fate, BoolArray]:
    """Mark the jobs of each fate, among those with a deadline (``slo`` and ``soft``).

    Void comes first: a void promise never counts as met, even if its job was in time. ``OPEN`` is a job that
    a stopped run left unfinished before its deadline. Every other job that is not on time is missed, also one
    that failed, was cancelled, or could never run in a complete run.
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
    """Return job completion times (JCT) in seconds, completion minus submission, of all completed jobs."""
    completed = has_end(jobs, JobEnd.COMPLETED)
    return (jobs.completed_at - jobs.submitted_at)[completed]


def queuing_seconds(jobs: JobOutcomes) -> FloatArray:
    """Return queuing times in seconds, first start minus submission, of all completed jobs."""
    completed = has_end(jobs, JobEnd.COMPLETED) & np.isfinite(jobs.started_at)
    return (jobs.started_at - jobs.submitted_at)[completed]


def waiting_seconds(jobs: JobOutcomes) -> FloatArray:
    """Return times without GPUs in seconds, before the first start and after preemptions, of all completed
    jobs."""
    return jobs.waiting_seconds[has_end(jobs, JobEnd.COMPLETED)]


def slack_seconds(jobs: JobOutcomes) -> FloatArray:
    """Return deadline minus completion in seconds, of completed promised jobs whose promise is not void;
    negative is late."""
    chosen = is_promised(jobs) & ~is_void(jobs) & has_end(jobs, JobEnd.COMPLETED)
    return (jobs.deadline_at - jobs.completed_at)[chosen & np.isfinite(jobs.deadline_at)]


def decision_milliseconds(outcome: RunOutcome) -> FloatArray:
    """Return the wall time of each decision in milliseconds, NaN for instants without one."""
    seconds = outcome.cluster.decision_seconds
    return np.where(seconds > 0.0, seconds * 1000.0, np.nan)


def begin_at(outcome: RunOutcome) -> float:
    """Return the beginning of the run in the trace's seconds: its first planning instant, or else its first
    submission."""
    for times in (outcome.cluster.time, outcome.jobs.submitted_at):
        if times.size:
            return float(times[0])
    return outcome.end_at


def simulated_seconds(outcome: RunOutcome) -> float:
    """Return the simulated time in seconds."""
    return outcome.end_at - begin_at(outcome)


def span_seconds(outcome: RunOutcome) -> FloatArray:
    """Return the length of each row of the cluster's history; the last one lasts until the run's end."""
    time = outcome.cluster.time
    if time.size == 0:
        return np.zeros(0)
    return np.maximum(np.diff(np.append(time, max(outcome.end_at, float(time[-1])))), 0.0)


def gpus_used(cluster: ClusterHistory) -> FloatArray:
    """Return the GPUs held by jobs, promised or not."""
    return (cluster.gpus_promised + cluster.gpus_unpromised).astype(np.float64)


def time_average(values: FloatArray, seconds: FloatArray) -> float | None:
    """Return the mean of a step function over time, ignoring spans without a value; None without any
    span."""
    known = np.isfinite(values)
    total = float(seconds[known].sum())
    return float((values[known] * seconds[known]).sum() / total) if total > 0.0 else None


def first_hours(outcome: RunOutcome, hours: float) -> FloatArray:
    """Return the seconds of each row of the cluster's history within the run's first hours."""
    left = begin_at(outcome) + hours * 3600.0 - outcome.cluster.time
    return np.clip(left, 0.0, span_seconds(outcome))


def mean_utilisation(outcome: RunOutcome) -> float | None:
    """Return GPU-seconds held by jobs over GPU-seconds available; None if there were none."""
    seconds = span_seconds(outcome)
    had = float((outcome.cluster.gpus * seconds).sum())
    return float((gpus_used(outcome.cluster) * seconds).sum() / had) if had > 0.0 else None
