"""Room that promised jobs keep for a reclaim: borrowed GPUs never back a promise (design section 4; decision 0015).

A promised job may grow onto borrowed servers of its own kind of GPU with flexible workers. When these go back it pauses, at any
moment and without being asked. So as long as it holds borrowed GPUs its plan on owned servers also bears that pause, and it
grows only where the plan bears the pause of growing too.
"""

from __future__ import annotations

from math import inf

import numpy as np

from scheduling.core.arrays import (
    TIME_TOLERANCE,
    BoolArray,
    JobArrays,
    Plans,
    copy_plans,
    planned_gpus,
    set_plan,
)
from scheduling.core.charging import charged_finish
from scheduling.core.compiling import YES, kernel
from scheduling.core.filling import ALL_LEVELS, fill
from scheduling.core.problem import Problem
from scheduling.core.snapshot import FloatArray, IntArray
from scheduling.core.timeline import GIVE_BACK, TAKE, occupy, occupy_all


def with_reclaim_room(jobs: JobArrays, rows: BoolArray) -> JobArrays:
    """The jobs, where those of ``rows`` have so much more work as they could do during one pause.

    As work rather than as a pause: a pause of the plan's own would swallow it.
    """
    work = jobs.work.copy()
    work[: rows.size] += np.where(rows, _lost_to_a_pause(jobs)[: rows.size], 0.0)
    return jobs._replace(work=work)


def room_for_growth(
    problem: Problem, plans: Plans, promised: BoolArray, rows: IntArray
) -> tuple[Plans, BoolArray]:
    """Which jobs of ``rows`` are in time though they pause twice more: to grow, and to shrink again at once. Returns (plans, truth a row).

    Where a job's plan does not bear that, it is planned anew into what all others leave free. ``plans``: an answer's, with their
    finish as charged; ``promised``: whose they are, offers included.
    """
    jobs = problem.jobs
    longer = jobs._replace(work=jobs.work + 2.0 * _lost_to_a_pause(jobs))
    times, free, count = problem.open_timeline()
    every = np.flatnonzero(plans.length > 0)
    for among, sure in ((every[promised[every]], True), (every[~promised[every]], False)):
        times, free, count = occupy_all(times, free, count, plans, among, sure)
    latest = problem.due - problem.slack_seconds
    roomy, bears = _with_room(
        jobs, longer, copy_plans(plans), latest, rows, times, free, count, problem.origin, problem.slot,
        problem.suffix,
    )  # fmt: skip
    return Plans(*roomy), bears


def _lost_to_a_pause(jobs: JobArrays) -> FloatArray:
    """Iterations that each job does on its fastest level during its longest pause."""
    lost: FloatArray = jobs.pause.max(axis=1, initial=0.0) * jobs.throughput.max(axis=1, initial=0.0)
    return lost


@kernel
def _with_room(jobs, longer, plans, latest, rows, times, free, count, origin, slot, suffix):  # type: ignore[no-untyped-def]
    bears = np.zeros(rows.size, dtype=np.bool_)
    nothing = np.zeros(0)
    for position in range(rows.size):
        row = rows[position]
        plain, _ = charged_finish(jobs, plans, row, nothing, nothing)
        if plain == inf:
            continue
        # What moves will cost the plan comes on top: its finish says how much that is.
        moves = max(0.0, plans.finish[row] - plain)
        later, _ = charged_finish(longer, plans, row, nothing, nothing)
        if later + moves <= latest[row] + TIME_TOLERANCE:
            bears[position] = True
            continue
        head = planned_gpus(plans, row, origin)
        times, free, count = occupy(times, free, count, plans, row, GIVE_BACK, YES)
        piece_time = np.zeros(count + 8)
        piece_gpus = np.zeros(count + 8, dtype=np.int64)
        pieces, finish, gpu_time = fill(
            longer, row, latest[row], times, free, count, True, origin, slot, head, ALL_LEVELS, suffix, moves,
            piece_time, piece_gpus,
        )  # fmt: skip
        if pieces > 0:
            plans = set_plan(plans, row, piece_time, piece_gpus, pieces, finish, gpu_time)
            bears[position] = True
        times, free, count = occupy(times, free, count, plans, row, TAKE, YES)
    return plans, bears
