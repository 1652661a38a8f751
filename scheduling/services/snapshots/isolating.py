"""Computes a decision although some job breaks it: finds the job, sets it aside and computes again without
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

#: Jobs with the culprit's curve that are also tested; most often all of them fail as it does.
MOST_COMPANIONS = 50
#: How a computation fails on unexpected figures. Other failures (time limits, the database) are not caused by
#: a job.
FAILURES = (
    ArithmeticError,
    AssertionError,
    AttributeError,
    LookupError,
    MemoryError,
    RuntimeError,  # includes RecursionError
    SystemError,
    TypeError,
    ValueError,
)

Answer = TypeVar("Answer")


def answer_isolated(cluster: Cluster, epoch: int, pool: Pool, ask: Callable[[Pool], Answer]) -> Answer:
    """Return the answer to the pool's question.

    Raises:
        SetAside: a job breaks every answer. This is stored whatever else the pass does; from now on snapshots
            leave the job out and block its GPUs.
        Exception: as ``ask`` raises, if no job causes it.
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
    """Return the answer for a waiting request, which sets no job aside.

    Raises:
        Unavailable: no answer can be computed.
    """
    try:
        return ask(pool)
    except FAILURES as error:
        log.exception("question_without_answer", kind=pool.kind)
        raise Unavailable(
            f"No plan can be computed at present ({words_on(error)}); try again in a moment."
        ) from error


def words_on(error: BaseException) -> str:
    """Return the error's type and text, at most 400 characters and without NUL, which the database
    refuses."""
    return f"{type(error).__name__}: {error}"[:400].replace("\0", "")


def set_aside_pool(cluster: Cluster, pool: Pool, now: datetime) -> None:
    """Store which jobs a snapshot leaves out, and which take part again. The caller holds the cluster's
    row."""
    planned = {job.id for job in pool.snapshot.jobs}
    note_set_aside(cluster, pool.unplannable, pool.breaking, planned, now)


def _write_down(cluster: Cluster, epoch: int, breaking: dict[str, str], question: Snapshot) -> None:
    """Set jobs aside in a transaction of its own, since the plan being computed will never be committed."""
    with transaction.atomic():
        current = lock_cluster(cluster.pk)
        if current.epoch != epoch:
            raise Moved
        questions = dict.fromkeys(breaking, question)
        note_set_aside(current, {}, breaking, set(), timezone.now(), questions)
        planning_fact_changed(current)


def _breaking(pool: Pool, ask: Callable[[Pool], object]) -> list[str]:
    """Return the first job with which answers fail, and jobs with its curve that break an answer by
    themselves.

    Empty if the answer fails without any job.
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
    """Return the job with which answers begin to fail as jobs are added: running ones first, newcomers last.

    None if the answer fails without any job.
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
    """Return whether there is an answer with only these jobs. The GPUs of the others are blocked."""
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
