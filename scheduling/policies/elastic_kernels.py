"""Elastic plans without admission control: a minimum satisfactory share, or all free GPUs for a late job."""

from __future__ import annotations

from math import inf

import numpy as np

from scheduling.core.elasticflow.minimum_satisfactory_share import ALL_LEVELS, NO_HEAD, Terms, fill
from scheduling.core.kernels import NO, YES, kernel
from scheduling.core.plans.slots import Slots, slot_end
from scheduling.core.plans.timeline import EVERYTHING, PROMISES, TAKE, Timeline, compact, occupy
from scheduling.core.question.arrays import TIME_TOLERANCE, BoolArray, JobArrays, Plans, new_draft, set_plan
from scheduling.core.question.snapshot import FloatArray, IntArray
from scheduling.policies.edf_kernels import work_down


@kernel
def _fastest(throughput: FloatArray, level_count: IntArray) -> FloatArray:
    """The highest throughput of each row on any of its levels, in iterations per second."""
    fastest = np.zeros(level_count.size)
    for row in range(level_count.size):
        for level in range(level_count[row]):
            fastest[row] = max(fastest[row], throughput[row, level])
    return fastest


@kernel
def _take_walked(
    timeline: Timeline, first: int, last: int, release: float, plan_time: FloatArray, plan_gpus: IntArray
) -> int:
    """Subtract from the timeline, in place, a plan that covers its pieces ``first`` to ``last``, the last
    until ``release``.

    The timeline must have room for one more piece. Returns the number of pieces.
    """
    times, free, count = timeline
    if release <= times[last] + TIME_TOLERANCE:
        last -= 1
    elif last + 1 == count or release + TIME_TOLERANCE < times[last + 1]:
        for later in range(count, last + 1, -1):
            times[later] = times[later - 1]
            free[EVERYTHING, later] = free[EVERYTHING, later - 1]
            free[PROMISES, later] = free[PROMISES, later - 1]
        times[last + 1] = release
        free[EVERYTHING, last + 1] = free[EVERYTHING, last]
        free[PROMISES, last + 1] = free[PROMISES, last]
        count += 1
    part = 0
    for piece in range(first, last + 1):
        while plan_time[part + 1] <= times[piece] + TIME_TOLERANCE:
            part += 1
        free[EVERYTHING, piece] -= plan_gpus[part]
    return count


@kernel
def _widened(timeline: Timeline) -> Timeline:
    """The same timeline with room for twice as many pieces."""
    times, free, count = timeline
    wider = np.zeros((2, 2 * times.size), dtype=np.int64)
    wider[:, : times.size] = free
    return Timeline(np.concatenate((times, np.zeros(times.size))), wider, count)


@kernel
def _rush(
    jobs: JobArrays,
    plans: Plans,
    order: IntArray,
    position: int,
    fastest: FloatArray,
    due: FloatArray,
    timeline: Timeline,
    first: int,
    slots: Slots,
) -> tuple[int, int, int]:
    """Plan late jobs of ``order`` from ``position`` on, each on all free GPUs from piece ``first`` on, until
    one may be in time.

    Subtracts the plans from the timeline in place. Stops early where a plan or the timeline needs more room,
    or where a job would never end. Returns (position of the first job that is not planned, pieces, first
    piece with a free GPU).
    """
    # Arrays read through a tuple within the loop would have their references counted at each access.
    levels, throughput, pauses, top = jobs.levels, jobs.throughput, jobs.pause, jobs.level_count
    work, held, left, storing = jobs.work, jobs.gpus, jobs.pause_left, jobs.finishing
    finished, locked = jobs.finished_at, jobs.locked
    plan_time, plan_gpus, length = plans.time, plans.gpus, plans.length
    finish, gpu_time = plans.finish, plans.gpu_time
    times, free, count = timeline
    origin = slots.origin
    room = free[EVERYTHING]
    width = plan_time.shape[1]
    while position < order.size and count < times.size:
        row = order[position]
        while first < count - 1 and room[first] <= 0:
            first += 1
        begin = max(times[first], origin)
        late = work[row] > fastest[row] * (due[row] - begin + 2 * TIME_TOLERANCE)
        if not late or locked[row] or finished[row] < inf:
            break
        gpus = held[row]
        pause = left[row]
        todo = work[row]
        spent = 0.0
        pieces = 0
        if first > 0:
            plan_time[row, 0] = origin
            plan_gpus[row, 0] = 0
            pieces = 1
            pause = pause if gpus == 0 else 0.0
            gpus = 0
        piece = first
        done = False
        while piece < count and pieces < width - 1 and not done:
            at = max(times[piece], origin)
            end = times[piece + 1] if piece + 1 < count else inf
            level = top[row] - 1
            while level >= 0 and levels[row, level] > room[piece]:
                level -= 1
            wanted = levels[row, level] if level >= 0 else 0
            if wanted != gpus:
                pause = max(pause, pauses[row, level]) if wanted > 0 else 0.0
                gpus = wanted
            if pieces == 0 or plan_gpus[row, pieces - 1] != gpus:
                plan_time[row, pieces] = at
                plan_gpus[row, pieces] = gpus
                pieces += 1
            if gpus > 0:
                rate = throughput[row, level]
                productive = end - at - pause
                if (productive + TIME_TOLERANCE) * rate >= todo:
                    done = True
                    ended = at + pause + todo / rate
                    release = min(slot_end(ended + storing[row], slots), end)
                    spent += gpus * (ended - at)
                else:
                    spent += gpus * (end - at)
                    if productive > 0.0:
                        todo -= productive * rate
                        pause = 0.0
                    else:
                        pause -= end - at
            piece += 1
        if not done:
            break
        plan_time[row, pieces] = release
        plan_gpus[row, pieces] = 0
        length[row] = pieces + 1
        finish[row] = ended
        gpu_time[row] = spent
        last = piece - 1
        count = _take_walked(
            Timeline(times, free, count), first, last, release, plan_time[row], plan_gpus[row]
        )
        position += 1
    return position, count, first


@kernel
def fill_or_rush(
    jobs: JobArrays,
    plans: Plans,
    order: IntArray,
    due: FloatArray,
    timeline: Timeline,
    slots: Slots,
    suffix: bool,
) -> tuple[Plans, BoolArray, Timeline]:
    """Plan the jobs of ``order`` one by one: the minimum satisfactory share, or all free GPUs where the
    deadline cannot be met.

    Returns (plans, marks of rows that meet their deadline, timeline).
    """
    met = np.zeros(jobs.work.size, dtype=np.bool_)
    fastest = _fastest(jobs.throughput, jobs.level_count)
    draft = new_draft(timeline.pieces + 64)
    position = 0
    first = 0
    while position < order.size:
        # Late jobs leave long times without a free GPU, split into as many pieces as there are jobs.
        if timeline.pieces == timeline.times.size:
            timeline = compact(timeline)
            first = 0
        if 2 * timeline.pieces > timeline.times.size:
            timeline = _widened(timeline)
        position, count, first = _rush(jobs, plans, order, position, fastest, due, timeline, first, slots)
        timeline = Timeline(timeline.times, timeline.free, count)
        if position == order.size or count == timeline.times.size:
            continue
        row = order[position]
        position += 1
        if draft.time.size < count + 8:
            draft = new_draft(2 * count + 8)
        pieces, finish, gpu_time = fill(
            jobs, row, due[row], timeline, slots, Terms(NO, suffix, NO_HEAD, ALL_LEVELS, 0.0), draft
        )
        met[row] = pieces > 0
        if pieces == 0:
            pieces, finish, gpu_time = work_down(jobs, row, timeline, first, slots, YES, draft)
        if pieces > 0:
            plans = set_plan(plans, row, draft, pieces, finish, gpu_time)
            timeline = occupy(timeline, plans, row, TAKE, NO)
    return plans, met, timeline
