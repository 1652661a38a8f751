"""Computing a decision although some job breaks it: find the job, leave it out, and go on for all others."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

import structlog

from cluster.models import Cluster
from scheduling.core.question.snapshot import BlockedGpus, JobSnapshot, Snapshot
from scheduling.services.incidents import note_set_aside
from scheduling.services.snapshots import Pool

log = structlog.get_logger(__name__)

#: So many jobs are looked for in one pass; more than these are a fault of the platform, not of jobs.
MOST_BREAKING_JOBS = 4
#: How a computation fails on figures that it was not made for. Everything else (time limits, the database) is
#: no job's doing.
FAILURES = (ArithmeticError, AssertionError, AttributeError, LookupError, TypeError, ValueError)

Answer = TypeVar("Answer")


def answered(pool: Pool, ask: Callable[[Pool], Answer]) -> tuple[Pool, Answer]:
    """The answer, and the pool that it is about: without the jobs that break every answer, which are in its
    ``breaking``.

    Raises:
        Exception: as ``ask`` does where no few jobs are to blame.
    """
    for _ in range(MOST_BREAKING_JOBS):
        try:
            return pool, ask(pool)
        except FAILURES as error:
            culprit = _first_breaking(pool, ask)
            if culprit is None:
                raise
            reason = f"planning failed with it ({type(error).__name__}: {error})"[:500]
            log.exception("job_breaks_planning", job=culprit.id)
            pool = without(pool, culprit, reason)
    return pool, ask(pool)


def set_aside(cluster: Cluster, pool: Pool, now: datetime) -> None:
    """Write down whom a pool leaves out. The caller holds the cluster's row."""
    planned = {job.id for job in pool.snapshot.jobs}
    note_set_aside(cluster, pool.unplannable, pool.breaking, planned, now, pool.unanswered)


def without(pool: Pool, job: JobSnapshot, reason: str) -> Pool:
    """The pool with one job left out. Its GPUs stay blocked: it runs on."""
    left = tuple(other for other in pool.snapshot.jobs if other.id != job.id)
    blocked = pool.snapshot.blocked
    if job.placement:
        until = pool.snapshot.now + 2 * pool.snapshot.settings.slot_seconds
        blocked = (*blocked, BlockedGpus(addresses=tuple(sorted(job.placement)), until=until))
    snapshot = replace(pool.snapshot, jobs=left, blocked=blocked)
    unanswered = {**pool.unanswered, job.id: pool.snapshot}
    return replace(pool, snapshot=snapshot, breaking={**pool.breaking, job.id: reason}, unanswered=unanswered)


def _first_breaking(pool: Pool, ask: Callable[[Pool], object]) -> JobSnapshot | None:
    """The job with which answers begin to fail, taking jobs in one by one: running ones first, newcomers
    last.

    None where an answer fails without any job.
    """
    snapshot = pool.snapshot
    jobs = sorted(snapshot.jobs, key=lambda job: (job.newcomer, job.submitted_at, job.id))

    def works(count: int) -> bool:
        try:
            ask(replace(pool, snapshot=_of(snapshot, jobs[:count], jobs[count:])))
        except FAILURES:
            return False
        return True

    if not works(0):
        return None
    good, bad = 0, len(jobs)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if works(middle) else (good, middle)
    return jobs[bad - 1] if jobs else None


def _of(snapshot: Snapshot, jobs: list[JobSnapshot], others: list[JobSnapshot]) -> Snapshot:
    held = tuple(sorted(address for job in others for address in job.placement))
    blocked = (*snapshot.blocked, BlockedGpus(held, snapshot.now + 60.0)) if held else snapshot.blocked
    return replace(snapshot, jobs=tuple(jobs), blocked=blocked)
