"""Free capacity over time as a piecewise constant function (spec 2.1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.kernels import ONE, ZERO, kernel, whole
from scheduling.core.question.arrays import TIME_TOLERANCE, Plans
from scheduling.core.question.snapshot import FloatArray, IntArray


class Timeline(NamedTuple):
    """Breakpoints ``times`` (seconds since now, the last piece unbounded), ``free`` with two rows, and the
    number of ``pieces`` in use.

    Row 0 is what all plans leave of every usable GPU; row 1 is what promised plans leave of the GPUs that may
    back promises (all but the failure reserve). A promise must fit both rows, other work row 0. Kernels
    change the arrays in place: what they return takes the place of what they were given.
    """

    times: FloatArray
    free: IntArray
    pieces: int


EVERYTHING = 0
PROMISES = 1
TAKE = whole(1)
GIVE_BACK = whole(-1)


@kernel
def new_timeline(start: float, gpus: int, promise_gpus: int) -> Timeline:
    """All capacity free from ``start`` on."""
    times = np.zeros(64)
    free = np.zeros((2, 64), dtype=np.int64)
    times[0] = start
    free[0, 0] = gpus
    free[1, 0] = promise_gpus
    return Timeline(times, free, ONE)


@kernel
def piece_at(times: FloatArray, count: int, at: float) -> int:
    """Index of the piece that holds ``at`` (the first piece for anything earlier)."""
    low = 0
    high = count
    while high - low > 1:
        middle = (low + high) // 2
        if times[middle] <= at + TIME_TOLERANCE:
            low = middle
        else:
            high = middle
    return low


@kernel
def free_until(timeline: Timeline, until: float) -> int:
    """GPUs that are free all the time from the timeline's beginning to ``until``."""
    times, free, count = timeline
    left: int = max(free[EVERYTHING, 0], ZERO)
    for piece in range(1, count):
        if times[piece] >= until - TIME_TOLERANCE:
            break
        left = max(min(left, free[EVERYTHING, piece]), ZERO)
    return left


@kernel
def split(timeline: Timeline, at: float) -> tuple[Timeline, int]:
    """Make ``at`` a breakpoint; returns the timeline and the breakpoint's index."""
    times, free, count = timeline
    index = piece_at(times, count, at)
    if at <= times[index] + TIME_TOLERANCE:
        return timeline, index
    if count == times.size:
        more_times = np.zeros(2 * count)
        more_free = np.zeros((2, 2 * count), dtype=np.int64)
        for piece in range(count):
            more_times[piece] = times[piece]
            more_free[0, piece] = free[0, piece]
            more_free[1, piece] = free[1, piece]
        times = more_times
        free = more_free
    for piece in range(count, index + 1, -1):
        times[piece] = times[piece - 1]
        free[0, piece] = free[0, piece - 1]
        free[1, piece] = free[1, piece - 1]
    times[index + 1] = at
    free[0, index + 1] = free[0, index]
    free[1, index + 1] = free[1, index]
    return Timeline(times, free, count + 1), index + 1


@kernel
def take(timeline: Timeline, begin: float, end: float, gpus: int, promised: bool) -> Timeline:
    """Take ``gpus`` GPUs out of the timeline on ``[begin, end)``."""
    timeline, first = split(timeline, begin)
    timeline, last = split(timeline, end)
    free = timeline.free
    for index in range(first, last):
        free[EVERYTHING, index] -= gpus
        if promised:
            free[PROMISES, index] -= gpus
    return timeline


@kernel
def occupy(timeline: Timeline, plans: Plans, job: int, sign: int, promised: bool) -> Timeline:
    """Take a plan's GPUs out of the timeline (``sign`` TAKE) or give them back (GIVE_BACK)."""
    for piece in range(plans.length[job] - 1):
        gpus = plans.gpus[job, piece]
        begin = max(plans.time[job, piece], plans.reserved_until[job])
        end = plans.time[job, piece + 1]
        if gpus == 0 or end <= begin + TIME_TOLERANCE:
            continue
        timeline = take(timeline, begin, end, sign * gpus, promised)
    return timeline


@kernel
def occupy_all(timeline: Timeline, plans: Plans, order: IntArray, promised: bool) -> Timeline:
    """Take the plans of all jobs in ``order`` out of the timeline."""
    for job in order:
        timeline = occupy(timeline, plans, job, TAKE, promised)
    return timeline


@kernel
def compact(timeline: Timeline) -> Timeline:
    """Equal neighbours merged, in place."""
    times, free, count = timeline
    kept = 1
    for piece in range(1, count):
        if free[0, piece] == free[0, kept - 1] and free[1, piece] == free[1, kept - 1]:
            continue
        times[kept] = times[piece]
        free[0, kept] = free[0, piece]
        free[1, kept] = free[1, piece]
        kept += 1
    return Timeline(times, free, kept)


@kernel
def capacities(timeline: Timeline, guarded: bool) -> IntArray:
    """GPUs free in each piece: for a promise when ``guarded``, else for any work."""
    free = timeline.free
    room = np.empty(timeline.pieces, dtype=np.int64)
    for piece in range(timeline.pieces):
        room[piece] = free[EVERYTHING, piece]
        if guarded and free[PROMISES, piece] < room[piece]:
            room[piece] = free[PROMISES, piece]
    return room


def copy_timeline(timeline: Timeline) -> Timeline:
    """An independent copy."""
    return Timeline(timeline.times.copy(), timeline.free.copy(), timeline.pieces)


def overbooked(timeline: Timeline) -> bool:
    """Whether some piece promises more GPUs than there are."""
    return bool((timeline.free[EVERYTHING, : timeline.pieces] < 0).any())
