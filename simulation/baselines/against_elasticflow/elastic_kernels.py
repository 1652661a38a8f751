"""Elastic plans without admission control: a minimum satisfactory share, or all free GPUs for a late job."""

from __future__ import annotations

from math import inf

import numpy as np

from kernels.compiling import NO, YES, kernel, leaf, whole
from scheduling.core.elasticflow.holding import next_wake
from scheduling.core.elasticflow.minimum_satisfactory_share import ALL_LEVELS, NO_HEAD, Terms, fill
from scheduling.core.plans.slots import Slots
from scheduling.core.plans.timeline import EVERYTHING, PROMISES, TAKE, Timeline, compact, occupy
from scheduling.core.question.arrays import (
    TIME_TOLERANCE,
    BoolArray,
    Draft,
    JobArrays,
    Plans,
    new_draft,
    set_plan,
)
from scheduling.core.question.columns import BEST_EFFORT
from scheduling.core.question.snapshot import FloatArray, IntArray
from simulation.baselines.against_elasticflow.edf_kernels import work_down

UNRANKED = whole(-1)


@kernel
def queues(rows: IntArray, service_class: IntArray, rank: IntArray) -> tuple[IntArray, IntArray]:
    """The ``rows`` with a deadline by their ``rank``, and those of best effort as they come.

    ``rank`` holds each number from 0 up to its size once.
    """
    placed = np.full(rank.size, UNRANKED)
    unhurried = np.empty(rows.size, dtype=np.int64)
    count = 0
    for row in rows:
        if service_class[row] == BEST_EFFORT:
            unhurried[count] = row
            count += 1
        else:
            placed[rank[row]] = row
    return placed[placed != UNRANKED], unhurried[:count]


@kernel
def next_sizes(
    jobs: JobArrays, plans: Plans, rows: IntArray, kept: IntArray, slots: Slots
) -> tuple[IntArray, float]:
    """GPUs of each job in the next slot, and when to look again: see `next_wake`.

    ``rows``: the jobs that may have a plan. ``kept``: GPUs of the others.
    """
    sizes = kept.copy()
    for row in rows:
        if plans.length[row] > 0:
            sizes[row] = plans.gpus[row, 0]
    return sizes, next_wake(jobs, plans, rows, slots)


@leaf
def _too_late(jobs: JobArrays, row: int, due: float, begin: float) -> bool:
    """Whether the job would miss its deadline even on its fastest level from ``begin`` on."""
    fastest = 0.0
    for level in range(jobs.level_count[row]):
        fastest = max(fastest, jobs.throughput[row, level])
    return bool(jobs.work[row] > fastest * (due - begin + 2 * TIME_TOLERANCE))


@leaf
def _take_walked(timeline: Timeline, first: int, draft: Draft, pieces: int) -> int:
    """Subtract from the timeline, in place, a plan that holds no GPU before its piece ``first``.

    The timeline must have room for one more piece: all of the plan's times but the last, its release, begin a
    piece already. Returns the number of pieces.
    """
    times, free, count = timeline
    plan_time, plan_gpus = draft
    release = plan_time[pieces - 1]
    last = first
    while last + 1 < count and times[last + 1] + TIME_TOLERANCE < release:
        last += 1
    if last + 1 == count or release + TIME_TOLERANCE < times[last + 1]:
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


@leaf
def _rush(
    jobs: JobArrays,
    plans: Plans,
    order: IntArray,
    position: int,
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
    times, free, count = timeline
    while position < order.size and count < times.size:
        row = order[position]
        while first < count - 1 and free[EVERYTHING, first] <= 0:
            first += 1
        late = _too_late(jobs, row, due[row], max(times[first], slots.origin))
        if not late or jobs.locked[row] or jobs.finished_at[row] < inf:
            break
        draft = Draft(plans.time[row], plans.gpus[row])
        timeline = Timeline(times, free, count)
        pieces, finish, gpu_time = work_down(jobs, row, timeline, first, slots, YES, draft)
        if pieces == 0:
            break
        plans.length[row] = pieces
        plans.finish[row] = finish
        plans.gpu_time[row] = gpu_time
        count = _take_walked(timeline, first, draft, pieces)
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
        position, count, first = _rush(jobs, plans, order, position, due, timeline, first, slots)
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
