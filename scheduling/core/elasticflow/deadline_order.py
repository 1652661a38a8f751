"""Fill all promises from scratch in deadline order (ElasticFlow section 4.1, Algorithm 1).

A newcomer changes no plan of a job with an earlier deadline. So the plans before its place in the order are
cached and reused for the next newcomer.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from kernels.compiling import YES, kernel
from scheduling.core.elasticflow.minimum_satisfactory_share import Terms, fill
from scheduling.core.plans.slots import Slots
from scheduling.core.plans.timeline import TAKE, Timeline, copy_timeline, occupy, timeline_copied
from scheduling.core.question.arrays import JobArrays, Plans, copy_plans, new_draft, plans_copied, set_plan
from scheduling.core.question.snapshot import FloatArray, IntArray

if TYPE_CHECKING:
    from scheduling.core.problem.problem import Problem
    from scheduling.core.problem.work import Work

BETWEEN_MARKS = 32
"""Jobs that are filled between two cached timelines."""


@kernel
def refill(
    jobs: JobArrays,
    due: FloatArray,
    plans: Plans,
    order: IntArray,
    carry: FloatArray,
    timeline: Timeline,
    slots: Slots,
    terms: Terms,
    to_the_end: bool,
) -> tuple[Plans, IntArray, Timeline, int]:
    """Fill all jobs of ``order`` from scratch on ``timeline``; both ``plans`` and ``timeline`` change.

    ``due``: when the last iteration must end, by row, in seconds from now. ``carry``: extra seconds of pauses
    that each plan must absorb, by row. ``to_the_end``: go on after a job that cannot meet its deadline; that
    job takes no GPUs. Returns (plans, rows that cannot meet their deadline, the timeline that is left, pieces
    walked over, as a count of work).
    """
    draft = new_draft(timeline.pieces + 64)
    failed = [0 for _ in range(0)]
    pieces_passed = 0
    for job in order:
        if draft.time.size < timeline.pieces + 8:
            draft = new_draft(2 * timeline.pieces + 8)
        pieces_passed += timeline.pieces
        its_terms = Terms(terms.guarded, terms.suffix, terms.head, terms.highest, carry[job])
        pieces, finish, gpu_time = fill(jobs, job, due[job], timeline, slots, its_terms, draft)
        if pieces == 0:
            failed.append(job)
            plans.length[job] = 0
            if not to_the_end:
                break
            continue
        plans = set_plan(plans, job, draft, pieces, finish, gpu_time)
        timeline = occupy(timeline, plans, job, TAKE, YES)
    result = np.empty(len(failed), dtype=np.int64)
    for index in range(len(failed)):
        result[index] = failed[index]
    return plans, result, timeline, pieces_passed


@kernel
def refill_beside(
    jobs: JobArrays,
    due: FloatArray,
    plans: Plans,
    order: IntArray,
    carry: FloatArray,
    opened: Timeline,
    slots: Slots,
    terms: Terms,
    to_the_end: bool,
) -> tuple[Plans, IntArray, int]:
    """`refill` on copies of ``plans`` and of the timeline ``opened``.

    Returns (plans, rows that cannot meet their deadline, pieces walked over).
    """
    left = timeline_copied(opened)
    plans, failed, _, pieces_passed = refill(
        jobs, due, plans_copied(plans), order, carry, left, slots, terms, to_the_end
    )
    return plans, failed, pieces_passed


class Mark(NamedTuple):
    """A cached timeline."""

    #: Place in the order of the job that is filled next.
    position: int
    #: Free capacity before that job is filled.
    timeline: Timeline


class Refilled(NamedTuple):
    """Jobs filled in deadline order, as far as the filling went."""

    #: Rows in deadline order.
    order: tuple[int, ...]
    #: Plans of the first ``reached`` rows of ``order``.
    plans: Plans
    #: Cached timelines, by ascending position.
    marks: tuple[Mark, ...]
    #: Number of jobs that were filled.
    reached: int
    #: The row at position ``reached`` if it cannot meet its deadline, else None.
    failing: int | None


class DeadlineOrder:
    """Promises filled from scratch in deadline order, cached from one newcomer to the next.

    Every job keeps its failure slack and leaves the failure reserve free, as a new promise must. ``opened``:
    free capacity beside held offers alone. ``plans``: rows without a promise keep their plan from here.
    ``suffix``: variant of filling.
    """

    def __init__(
        self,
        problem: Problem,
        plans: Plans,
        opened: Timeline,
        work: Work,
        *,
        suffix: bool,
    ) -> None:
        self._problem = problem
        self._suffix = suffix
        self._work = work
        self._due = problem.due - problem.slack_seconds
        self._no_carry = np.zeros(problem.jobs.work.size)
        self._kept = Refilled((), copy_plans(plans), (Mark(0, opened),), 0, None)

    def with_newcomer(self, rows: Sequence[int], row: int) -> Refilled:
        """Fill the promised ``rows`` and the newcomer ``row``, up to the first job that fails.

        The cache keeps the plans before the newcomer alone; call `keep` once it is promised.
        """
        self._keep(rows)
        rank = self._problem.by_deadline
        place = bisect_left(self._kept.order, int(rank[row]), key=lambda other: int(rank[other]))
        self._kept = self._continued(self._kept, place)
        if self._kept.reached < place:
            return self._kept
        order = (*self._kept.order[:place], row, *self._kept.order[place:])
        before = _cut(self._kept, order, place)
        return self._continued(before._replace(plans=copy_plans(before.plans)), len(order))

    def keep(self, refilled: Refilled) -> None:
        """Cache the result of `with_newcomer`, whose newcomer is promised now."""
        self._kept = refilled._replace(plans=copy_plans(refilled.plans))

    def _keep(self, rows: Sequence[int]) -> None:
        """Cut the cache at the first row whose place in the order changed."""
        rank = self._problem.by_deadline
        order = tuple(sorted(rows, key=lambda row: int(rank[row])))
        if order == self._kept.order:
            return
        same = 0
        for one, other in zip(order, self._kept.order, strict=False):
            if one != other:
                break
            same += 1
        self._kept = _cut(self._kept, order, same)

    def _continued(self, refilled: Refilled, until: int) -> Refilled:
        """Fill further jobs, up to the position ``until`` or the first job that fails."""
        order, plans, marks, reached, failing = refilled
        if failing is not None or reached >= until:
            return refilled
        problem = self._problem
        kept = list(marks)
        position, timeline = kept[-1]
        timeline = copy_timeline(timeline)
        while position < until:
            end = min(position + BETWEEN_MARKS, until)
            plans, failed, timeline, pieces_passed = refill(
                problem.jobs, self._due, plans, np.array(order[position:end], dtype=np.int64), self._no_carry,
                timeline, problem.slots, Terms(True, self._suffix), False,
            )  # fmt: skip
            (self._work.add if self._suffix else self._work.add_passed)(pieces_passed)
            if failed.size:
                row = int(failed[0])
                return Refilled(order, plans, tuple(kept), order.index(row), row)
            position = end
            if position - kept[-1].position >= BETWEEN_MARKS:
                kept.append(Mark(position, copy_timeline(timeline)))
        return Refilled(order, plans, tuple(kept), until, None)


def _cut(refilled: Refilled, order: tuple[int, ...], position: int) -> Refilled:
    """The part of ``refilled`` that is valid for another ``order``, which is equal before ``position``."""
    marks = tuple(mark for mark in refilled.marks if mark.position <= position)
    fails = refilled.failing if refilled.failing is not None and refilled.reached < position else None
    return Refilled(order, refilled.plans, marks, min(refilled.reached, position), fails)
