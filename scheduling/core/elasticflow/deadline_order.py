"""All promises filled from scratch in one order (ElasticFlow section 4.1, Algorithm 1), and what of it can be
kept.

Filled in deadline order, a newcomer changes nothing before its own place in that order. So the fillings up to
there are those of the newcomer before it, and nothing is filled twice for them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from scheduling.core.elasticflow.minimum_satisfactory_share import Terms, fill
from scheduling.core.kernels import YES, kernel
from scheduling.core.plans.slots import Slots
from scheduling.core.plans.timeline import TAKE, Timeline, copy_timeline, occupy, timeline_copied
from scheduling.core.question.arrays import JobArrays, Plans, copy_plans, new_draft, plans_copied, set_plan
from scheduling.core.question.snapshot import FloatArray, IntArray

if TYPE_CHECKING:
    from scheduling.core.problem.problem import Problem
    from scheduling.core.problem.work import Work

BETWEEN_MARKS = 32
"""Jobs filled from one kept timeline to the next."""


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
    """Fill all jobs of ``order`` from scratch on a timeline.

    ``carry``: seconds of pauses, per row, that the plan must be able to absorb beyond its own.
    ``to_the_end``: go on after a job that cannot meet its deadline. Such a job takes nothing, so the plans of
    the others are those without it. Returns (plans, rows that cannot meet their deadline, the timeline that
    is left, pieces of the timelines that jobs were filled on).
    """
    draft = new_draft(timeline.pieces + 64)
    failed = [0 for _ in range(0)]
    walked = 0
    for job in order:
        if draft.time.size < timeline.pieces + 8:
            draft = new_draft(2 * timeline.pieces + 8)
        walked += timeline.pieces
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
    return plans, result, timeline, walked


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
    """`refill` that changes neither ``plans`` nor the timeline ``opened``. Returns (plans, rows that cannot
    meet their deadline, pieces of the timelines that jobs were filled on)."""
    left = timeline_copied(opened)
    plans, failed, _, walked = refill(
        jobs, due, plans_copied(plans), order, carry, left, slots, terms, to_the_end
    )
    return plans, failed, walked


class Mark(NamedTuple):
    """The timeline before the job at ``position`` of the order was filled."""

    position: int
    timeline: Timeline


class Refilled(NamedTuple):
    """Fillings in deadline order as far as they go.

    ``order``: rows, ``plans`` those of the first ``reached`` of them; ``failing``: the row at ``reached``
    that cannot meet its deadline, None where there is none yet.
    """

    order: tuple[int, ...]
    plans: Plans
    marks: tuple[Mark, ...]
    reached: int
    failing: int | None


class DeadlineOrder:
    """Promises filled afresh in deadline order under one variant of filling, kept from one newcomer to the
    next.

    Everybody keeps the slack and the capacity that new promises must. ``opened``: the timeline without any
    promise, held offers taken out of it. Rows that hold no promise keep the plans that were there when this
    was made.
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
        """All of ``rows`` and the newcomer filled, up to the first that fails. Nothing is kept of the
        newcomer."""
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
        """Go on from fillings that were found with a newcomer, now promised."""
        self._kept = refilled._replace(plans=copy_plans(refilled.plans))

    def _keep(self, rows: Sequence[int]) -> None:
        """Fit what is kept to these rows: what comes before the first difference stays."""
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
        """Filled further, up to the position ``until`` or the first job that fails."""
        order, plans, marks, reached, failing = refilled
        if failing is not None or reached >= until:
            return refilled
        problem = self._problem
        kept = list(marks)
        position, timeline = kept[-1]
        timeline = copy_timeline(timeline)
        while position < until:
            end = min(position + BETWEEN_MARKS, until)
            plans, failed, timeline, walked = refill(
                problem.jobs, self._due, plans, np.array(order[position:end], dtype=np.int64), self._no_carry,
                timeline, problem.slots, Terms(True, self._suffix), False,
            )  # fmt: skip
            self._work.add(walked)
            if failed.size:
                row = int(failed[0])
                return Refilled(order, plans, tuple(kept), order.index(row), row)
            position = end
            if position - kept[-1].position >= BETWEEN_MARKS:
                kept.append(Mark(position, copy_timeline(timeline)))
        return Refilled(order, plans, tuple(kept), until, None)


def _cut(refilled: Refilled, order: tuple[int, ...], position: int) -> Refilled:
    """What holds of the fillings for another order that is the same up to ``position``."""
    marks = tuple(mark for mark in refilled.marks if mark.position <= position)
    fails = refilled.failing if refilled.failing is not None and refilled.reached < position else None
    return Refilled(order, refilled.plans, marks, min(refilled.reached, position), fails)
