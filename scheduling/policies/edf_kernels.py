"""Whole plans in deadline order, each job on the most GPUs it can use."""

from __future__ import annotations

from math import inf

import numpy as np

from scheduling.core.kernels import NO, kernel
from scheduling.core.plans.slots import slot_end
from scheduling.core.plans.timeline import EVERYTHING, TAKE, occupy, piece_at
from scheduling.core.question.arrays import TIME_TOLERANCE, JobArrays, Plans, set_plan
from scheduling.core.question.snapshot import FloatArray, IntArray


@kernel
def work_down(
    jobs: JobArrays,
    row: int,
    times: FloatArray,
    free: IntArray,
    count: int,
    first: int,
    origin: float,
    slot: float,
    with_pauses: bool,
    out_time: FloatArray,
    out_gpus: IntArray,
) -> tuple[int, float, float]:
    """Plan one job on the largest of its sizes that is free at each time, until it is done.

    ``first``: no GPU is free in the pieces before it. Returns (pieces, finish, GPU seconds); 0 pieces where
    the GPUs are never enough.
    """
    # Read through the tuple in the loop, each array would be counted as in use and released again each time.
    levels = jobs.levels[row]
    throughput = jobs.throughput[row]
    pauses = jobs.pause[row]
    top = jobs.level_count[row] - 1
    held = jobs.gpus[row]
    pause = jobs.pause_left[row] if with_pauses else 0.0
    work = jobs.work[row]
    gpu_time = 0.0
    pieces = 0
    begin = piece_at(times, count, origin)
    if first > begin:
        begin = first
        out_time[0] = origin
        out_gpus[0] = 0
        pieces = 1
        if held != 0:
            held = 0
            pause = 0.0
    for piece in range(begin, count):
        at = max(times[piece], origin)
        end = times[piece + 1] if piece + 1 < count else inf
        room = free[EVERYTHING, piece]
        level = top if room > 0 else -1
        while level >= 0 and levels[level] > room:
            level -= 1
        gpus = levels[level] if level >= 0 else 0
        if gpus != held:
            pause = max(pause, pauses[level]) if with_pauses and gpus > 0 else 0.0
            held = gpus
        if pieces == 0 or out_gpus[pieces - 1] != gpus:
            out_time[pieces] = at
            out_gpus[pieces] = gpus
            pieces += 1
        if gpus == 0:
            continue
        rate = throughput[level]
        productive = end - at - pause
        if (productive + TIME_TOLERANCE) * rate >= work:
            finish = at + pause + work / rate
            out_time[pieces] = min(slot_end(finish + jobs.finishing[row], origin, slot), end)
            out_gpus[pieces] = 0
            return pieces + 1, finish, gpu_time + gpus * (finish - at)
        gpu_time += gpus * (end - at)
        if productive > 0.0:
            work -= productive * rate
            pause = 0.0
        else:
            pause -= end - at
    return 0, inf, 0.0


@kernel
def plan_in_order(
    jobs: JobArrays,
    plans: Plans,
    order: IntArray,
    times: FloatArray,
    free: IntArray,
    count: int,
    origin: float,
    slot: float,
    with_pauses: bool,
) -> tuple[Plans, FloatArray, IntArray, int]:
    """Plans of all jobs in ``order``, each on what the ones before it leave. Returns (plans, timeline).

    ``with_pauses``: let plans carry the pauses of their own changes of size.
    """
    piece_time = np.zeros(64)
    piece_gpus = np.zeros(64, dtype=np.int64)
    for row in order:
        if piece_time.size < count + 4:
            piece_time = np.zeros(2 * count + 4)
            piece_gpus = np.zeros(2 * count + 4, dtype=np.int64)
        pieces, finish, gpu_time = work_down(
            jobs, row, times, free, count, 0, origin, slot, with_pauses, piece_time, piece_gpus
        )
        plans.length[row] = 0
        plans.finish[row] = inf
        if pieces > 0:
            plans = set_plan(plans, row, piece_time, piece_gpus, pieces, finish, gpu_time)
            times, free, count = occupy(times, free, count, plans, row, TAKE, NO)
    return plans, times, free, count
