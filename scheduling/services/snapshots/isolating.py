"""Computing a decision although some job breaks it: find the job, set it aside at once, and ask again without
it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from datetime import datetime
from typing import TypeVar

import structlog
from django.db import transaction
from django.utils import timezone

from cluster.models import Cluster
from projects.errors import Unavailable
from scheduling.core.plans.release import UNKNOWN_SECONDS
from scheduling.core.question.snapshot import BlockedGpus, JobSnapshot, Snapshot
from scheduling.models import Job
from scheduling.services.rows.records import lock_cluster, planning_fact_changed
from scheduling.services.snapshots.planner_lease import Moved, SetAside
from scheduling.services.snapshots.setting_aside import note_set_aside
from scheduling.services.snapshots.snapshots import Pool

log = structlog.get_logger(__name__)

#: Jobs on the culprit's curve that are asked about beside it: most often all of them break what it breaks.
MOST_COMPANIONS = 50
#: How a computation fails on figures that it was not made for. Everything else (time limits, the database) is
#: no job's doing.
FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,  # of it RecursionError
    SystemError,
    TypeError,
    ValueError,
)

Answer = TypeVar("Answer")


def answered(cluster: Cluster, epoch: int, pool: Pool, ask: Callable[[Pool], Answer]) -> Answer:
    """The answer to the pool's question.

    Raises:
        SetAside: a job breaks every answer. That is written down whatever else the pass comes to, and from
            now on snapshots leave the job out and block what it holds.
        Exception: as ``ask`` does where no job is to blame.
    """
    try:
        return ask(pool)
    except FAILURES as error:
        breaking = _breaking(pool, ask)
        if not breaking:
            raise
        reason = f"planning failed with it ({words_on(error)})"
        log.exception("jobs_break_planning", jobs=breaking)
        _write_down(cluster, epoch, dict.fromkeys(breaking, reason), pool.snapshot)
        raise SetAside(breaking[0]) from error


def answered_now(pool: Pool, ask: Callable[[Pool], Answer]) -> Answer:
    """The answer, for somebody who waits for it. Whom the planner will set aside is not for a request to say.

    Raises:
        Unavailable: none can be computed.
    """
    try:
        return ask(pool)
    except FAILURES as error:
        log.exception("question_without_answer", kind=pool.kind)
        raise Unavailable(
            f"No plan can be computed at present ({words_on(error)}); try again in a moment."
        ) from error


def words_on(error: BaseException) -> str:
    """What failed, in at most 400 characters that the database takes."""
    return f"{type(error).__name__}: {error}"[:400].replace("\0", "")


def set_aside(cluster: Cluster, pool: Pool, now: datetime) -> None:
    """Write down whom a snapshot leaves out, and who takes part again. The caller holds the cluster's row."""
    planned = {job.id for job in pool.snapshot.jobs}
    note_set_aside(cluster, pool.unplannable, pool.breaking, planned, now)


def _write_down(cluster: Cluster, epoch: int, breaking: dict[str, str], question: Snapshot) -> None:
    """In a transaction of its own: the plan that is being computed will never be committed."""
    with transaction.atomic():
        current = lock_cluster(cluster.pk)
        if current.epoch != epoch:
            raise Moved
        questions = dict.fromkeys(breaking, question)
        note_set_aside(current, {}, breaking, set(), timezone.now(), questions)
        planning_fact_changed(current)


def _breaking(pool: Pool, ask: Callable[[Pool], object]) -> list[str]:
    """The job with which answers begin to fail, and those on its curve that break one by themselves.

    Empty where an answer fails without any job.
    """
    culprit = _first_breaking(pool, ask)
    if culprit is None:
        return []
    companions = [] if _works(pool, ask, [culprit]) else list(_companions(pool.snapshot.jobs, culprit))
    return [culprit.id, *(job.id for job in companions if not _works(pool, ask, [job]))]


def _companions(jobs: Sequence[JobSnapshot], culprit: JobSnapshot) -> Iterator[JobSnapshot]:
    curve = Job.objects.filter(pk=culprit.id).values("curve")
    known = {job.id: job for job in jobs if job.id != culprit.id}
    found = Job.objects.filter(pk__in=known, curve__in=curve).order_by("submitted_at", "id")
    yield from (known[job_id] for job_id in found.values_list("pk", flat=True)[:MOST_COMPANIONS])


def _first_breaking(pool: Pool, ask: Callable[[Pool], object]) -> JobSnapshot | None:
    """The job with which answers begin to fail, taking jobs in one by one: running ones first, newcomers
    last.

    None where an answer fails without any job.
    """
    jobs = sorted(pool.snapshot.jobs, key=lambda job: (job.newcomer, job.submitted_at, job.id))
    if not _works(pool, ask, []):
        return None
    good, bad = 0, len(jobs)
    while bad - good > 1:
        middle = (good + bad) // 2
        good, bad = (middle, bad) if _works(pool, ask, jobs[:middle]) else (good, middle)
    return jobs[bad - 1] if jobs else None


def _works(pool: Pool, ask: Callable[[Pool], object], jobs: Sequence[JobSnapshot]) -> bool:
    """Whether there is an answer with these jobs alone. What the others hold is blocked."""
    snapshot = pool.snapshot
    taking_part = {job.id for job in jobs}
    held = {address for job in snapshot.jobs if job.id not in taking_part for address in job.placement}
    blocked = snapshot.blocked
    if held:
        blocked = (*blocked, BlockedGpus(tuple(sorted(held)), snapshot.now + UNKNOWN_SECONDS))
    try:
        ask(replace(pool, snapshot=replace(snapshot, jobs=tuple(jobs), blocked=blocked)))
    except FAILURES:
        return False
    return True
