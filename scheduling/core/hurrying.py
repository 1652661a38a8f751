"""Jobs at risk: a promise that no plan keeps any more ends as early as the kept promises leave room for."""

from __future__ import annotations

from collections.abc import Iterable
from math import inf

from scheduling.core.arrays import TIME_TOLERANCE, Plans, set_plan
from scheduling.core.compiling import NO
from scheduling.core.filling import ALL_LEVELS, NO_HEAD, earliest_finish, fill
from scheduling.core.problem import Problem
from scheduling.core.snapshot import FloatArray, IntArray
from scheduling.core.timeline import TAKE, occupy


def hurry(
    problem: Problem, plans: Plans, rows: Iterable[int], times: FloatArray, free: IntArray, count: int
) -> tuple[Plans, FloatArray, IntArray, int]:
    """Plan each of ``rows``, in this order, to end as early as the timeline allows; the reserve may be used.

    Demoted to their lowest level such jobs would be late for certain; a delay that passes must not do that.
    Returns the plans, without one for a job that finds no room at all, and what they leave free.
    """
    for row in rows:
        scratch = problem.scratch(count)
        earliest = earliest_finish(
            problem.jobs, row, times, free, count, False, problem.origin, problem.slot, *scratch
        )
        plans.length[row] = 0
        if earliest == inf:
            continue
        pieces, finish, gpu_time = fill(
            problem.jobs, row, earliest + TIME_TOLERANCE, times, free, count, False, problem.origin,
            problem.slot, NO_HEAD, ALL_LEVELS, False, 0.0, *scratch,
        )  # fmt: skip
        if pieces:
            plans = set_plan(plans, row, *scratch, pieces, finish, gpu_time)
            times, free, count = occupy(times, free, count, plans, row, TAKE, NO)
    return plans, times, free, count
