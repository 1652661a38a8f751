"""Which jobs may be suspended so that a new function can be measured, and how often (contracts 5)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from scheduling.core.question.snapshot import JobSnapshot, ServiceClass

ONCE_IN_SECONDS = 60.0
"""A job makes way at most once in this time, however many functions wait to be measured."""


def may_make_way(job: JobSnapshot) -> bool:
    """Whether a measurement may ever suspend the job: it has no deadline and is in no change of its GPUs."""
    return job.service_class is ServiceClass.BEST_EFFORT and not job.locked


def rests_until(made_way_at: float) -> float:
    """Until when no measurement may suspend a job again that made way at ``made_way_at``."""
    return made_way_at + ONCE_IN_SECONDS


def making_way(jobs: Iterable[JobSnapshot], made_way_at: Mapping[str, float], now: float) -> set[str]:
    """Ids of the jobs that a measurement may suspend now.

    ``made_way_at``: when each job was last suspended for one, by id.
    """
    return {
        job.id
        for job in jobs
        if may_make_way(job) and (job.id not in made_way_at or rests_until(made_way_at[job.id]) <= now)
    }
