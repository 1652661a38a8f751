"""Elastic plans for jobs that nobody refused: shares where they meet the deadline, all there is where not."""

from __future__ import annotations

from math import inf

import numpy as np

from scheduling.core.arrays import TIME_TOLERANCE, set_plan
from scheduling.core.compiling import NO, kernel
from scheduling.core.filling import ALL_LEVELS, NO_HEAD, fill
from scheduling.core.timeline import EVERYTHING, TAKE, compact, occupy
from scheduling.policies.edf_kernels import work_down


@kernel
def _hopeless(jobs, row, due, begin):  # type: ignore[no-untyped-def]
    """Whether a job that gets no GPU before ``begin`` is late even at its fastest: `fill` would find that out at length."""
    if jobs.finished_at[row] < inf or jobs.locked[row]:
        return False
    fastest = 0.0
    throughput = jobs.throughput[row]
    for level in range(jobs.level_count[row]):
        fastest = max(fastest, throughput[level])
    return jobs.work[row] > fastest * (due - begin + 2 * TIME_TOLERANCE)


@kernel
def fill_or_rush(jobs, plans, order, due, times, free, count, origin, slot, suffix):  # type: ignore[no-untyped-def]
    """Plan the jobs of ``order`` one after the other: the least share that meets the deadline, else all that is free.

    Returns (plans, True per row that meets its deadline, timeline).
    """
    met = np.zeros(jobs.work.size, dtype=np.bool_)
    piece_time = np.zeros(64)
    piece_gpus = np.zeros(64, dtype=np.int64)
    merged = count
    first = 0  # no GPU is free in the pieces before it, nor becomes so here
    for row in order:
        # Late jobs leave long stretches without a free GPU, cut into as many pieces as there are jobs: each further one would
        # walk over all of them.
        if count > 2 * merged + 16:
            count = compact(times, free, count)
            merged = count
            first = 0
        while first < count - 1 and free[EVERYTHING, first] <= 0:
            first += 1
        if piece_time.size < count + 8:
            piece_time = np.zeros(2 * count + 8)
            piece_gpus = np.zeros(2 * count + 8, dtype=np.int64)
        pieces = 0
        finish = inf
        gpu_time = 0.0
        if not _hopeless(jobs, row, due[row], max(times[first], origin)):
            pieces, finish, gpu_time = fill(
                jobs, row, due[row], times, free, count, NO, origin, slot, NO_HEAD, ALL_LEVELS, suffix, 0.0,
                piece_time, piece_gpus,
            )  # fmt: skip
        met[row] = pieces > 0
        if pieces == 0:
            pieces, finish, gpu_time = work_down(
                jobs, row, times, free, count, first, origin, slot, True, piece_time, piece_gpus
            )
        plans.length[row] = 0
        if pieces > 0:
            plans = set_plan(plans, row, piece_time, piece_gpus, pieces, finish, gpu_time)
            times, free, count = occupy(times, free, count, plans, row, TAKE, NO)
    return plans, met, times, free, count
