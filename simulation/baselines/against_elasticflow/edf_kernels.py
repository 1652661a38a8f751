"""Plans in deadline order, each job on the largest level that is free."""

from __future__ import annotations

from math import inf

from kernels.compiling import NO, ZERO, kernel, leaf
from scheduling.core.plans.slots import Slots, slot_end
from scheduling.core.plans.timeline import EVERYTHING, TAKE, Timeline, occupy, piece_at
from scheduling.core.question.arrays import TIME_TOLERANCE, Draft, JobArrays, Plans, new_draft, set_plan
from scheduling.core.question.snapshot import IntArray


@leaf
def _largest_free(levels: IntArray, top: int, room: int) -> int:
    """Column of the largest level up to ``top`` for which ``room`` GPUs are enough, or -1."""
    level = top if room > 0 else -1
    while level >= 0 and levels[level] > room:
        level -= 1
    return level


@leaf
def work_down(
    jobs: JobArrays,
    row: int,
    timeline: Timeline,
    first: int,
    slots: Slots,
    with_pauses: bool,
    draft: Draft,
) -> tuple[int, float, float]:
    """Plan one job on the largest of its levels that is free at each time, until it ends.

    ``first``: no GPU is free in the pieces before it. Returns (pieces, finish, GPU seconds); 0 pieces if the
    job never ends, or if its plan does not fit into ``draft``.
    """
    times, free, count = timeline
    out_time, out_gpus = draft
    origin = slots.origin
    levels, throughput, pauses = jobs.levels[row], jobs.throughput[row], jobs.pause[row]
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
        pause = pause if held == 0 else 0.0
        held = 0
    for piece in range(begin, count):
        if pieces + 1 == out_time.size:
            break
        at = max(times[piece], origin)
        end = times[piece + 1] if piece + 1 < count else inf
        level = _largest_free(levels, jobs.level_count[row] - 1, free[EVERYTHING, piece])
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
            out_time[pieces] = min(slot_end(finish + jobs.finishing[row], slots), end)
            out_gpus[pieces] = 0
            return pieces + 1, finish, gpu_time + gpus * (finish - at)
        gpu_time += gpus * (end - at)
        work -= max(productive, 0.0) * rate
        pause = max(pause - (end - at), 0.0)
    return 0, inf, 0.0


@kernel
def plan_in_order(
    jobs: JobArrays,
    plans: Plans,
    order: IntArray,
    timeline: Timeline,
    slots: Slots,
    with_pauses: bool,
) -> tuple[Plans, Timeline]:
    """Plan all jobs of ``order``, each on the GPUs that earlier ones leave. Returns (plans, timeline).

    ``with_pauses``: plans include the pauses of their own changes of level.
    """
    draft = new_draft(timeline.pieces + 64)
    for row in order:
        if draft.time.size < timeline.pieces + 4:
            draft = new_draft(2 * timeline.pieces + 4)
        pieces, finish, gpu_time = work_down(jobs, row, timeline, ZERO, slots, with_pauses, draft)
        plans.length[row] = 0
        plans.finish[row] = inf
        if pieces > 0:
            plans = set_plan(plans, row, draft, pieces, finish, gpu_time)
            timeline = occupy(timeline, plans, row, TAKE, NO)
    return plans, timeline
