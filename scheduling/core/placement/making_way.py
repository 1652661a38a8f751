"""Which jobs may make way so that a new function can be measured, and how often."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

import numpy as np

from scheduling.core.question.snapshot import JobSnapshot, ServiceClass

ONCE_IN_SECONDS = 60.0
"""A job makes way at most once in this time, however many functions wait to be measured."""


def may_make_way(job: JobSnapshot, now: float) -> bool:
    """Whether the job may make way for a measurement: without a deadline by giving up all its GPUs, with one
    by giving up some that it does not need. No job does in a change of its GPUs."""
    if job.locked:
        return False
    return job.service_class is ServiceClass.BEST_EFFORT or has_grown(job, now)


def has_grown(job: JobSnapshot, now: float) -> bool:
    """Whether a job with a deadline holds more GPUs than it needs.

    A promised job needs fewer if it meets its deadline on the next lower level from now on, with the pause of
    the change. A soft job without a promise needs its lowest level. A job at risk needs all that it holds.
    """
    lower = np.flatnonzero(job.curve.levels < job.gpus_now)
    if not lower.size or job.at_risk:
        return False
    if not job.promised:
        return job.service_class is ServiceClass.SOFT
    level = lower[-1]
    training = job.remaining_iterations / job.curve.throughput[level] + job.curve.pause_seconds[level]
    ends_at = now + training + job.finishing_seconds + job.failure_slack_seconds
    return bool(ends_at <= job.deadline_at)


def rests_until(made_way_at: float) -> float:
    """When a job that made way at ``made_way_at`` may do so again."""
    return made_way_at + ONCE_IN_SECONDS


def making_way(jobs: Iterable[JobSnapshot], made_way_at: Mapping[str, float], now: float) -> set[str]:
    """Ids of the jobs that may make way for a measurement now.

    ``made_way_at``: when each job last made way for one, by id.
    """
    return {
        job.id
        for job in jobs
        if may_make_way(job, now) and (job.id not in made_way_at or rests_until(made_way_at[job.id]) <= now)
    }
