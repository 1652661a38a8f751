"""Free capacity over time as a piecewise constant function (spec 2.1)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.kernels import ZERO, kernel, leaf, whole
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
ONE_TAKING = whole(2)
"""Pieces that taking GPUs for one span adds at most."""


def new_timeline(start: float, gpus: int, promise_gpus: int) -> Timeline:
    """All capacity free from ``start`` on."""
    times = np.zeros(64)
    free = np.zeros((2, 64), dtype=np.int64)
    times[0] = start
    free[0, 0] = gpus
    free[1, 0] = promise_gpus
    return Timeline(times, free, 1)


@leaf
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


@leaf
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
def with_room(timeline: Timeline, more: int) -> Timeline:
    """The same timeline with room for at least so many ``more`` pieces."""
    times, free, count = timeline
    if count + more <= times.size:
        return timeline
    room = max(2 * times.size, count + more)
    more_times = np.zeros(room)
    more_free = np.zeros((2, room), dtype=np.int64)
    more_times[:count] = times[:count]
    more_free[:, :count] = free[:, :count]
    return Timeline(more_times, more_free, count)


@leaf
def _split(times: FloatArray, free: IntArray, count: int, at: float) -> tuple[int, int]:
    """Make ``at`` a breakpoint, for which there must be room; returns the pieces and the breakpoint's
    index."""
    index = piece_at(times, count, at)
    if at <= times[index] + TIME_TOLERANCE:
        return count, index
    for piece in range(count, index + 1, -1):
        times[piece] = times[piece - 1]
        free[0, piece] = free[0, piece - 1]
        free[1, piece] = free[1, piece - 1]
    times[index + 1] = at
    free[0, index + 1] = free[0, index]
    free[1, index + 1] = free[1, index]
    return count + 1, index + 1


@leaf
def _take(
    times: FloatArray, free: IntArray, count: int, begin: float, end: float, gpus: int, promised: bool
) -> int:
    """`take` in place, where there is room for two more pieces; returns the pieces."""
    count, first = _split(times, free, count, begin)
    count, last = _split(times, free, count, end)
    for index in range(first, last):
        free[EVERYTHING, index] -= gpus
        if promised:
            free[PROMISES, index] -= gpus
    return count


@kernel
def take(timeline: Timeline, begin: float, end: float, gpus: int, promised: bool) -> Timeline:
    """Take ``gpus`` GPUs out of the timeline on ``[begin, end)``."""
    times, free, count = with_room(timeline, ONE_TAKING)
    return Timeline(times, free, _take(times, free, count, begin, end, gpus, promised))


@leaf
def occupy_in_room(timeline: Timeline, plans: Plans, job: int, sign: int, promised: bool) -> int:
    """`occupy` in place, where there is room for two more pieces for each of the plan's; returns the
    pieces."""
    times, free, count = timeline
    for piece in range(plans.length[job] - 1):
        gpus = plans.gpus[job, piece]
        begin = max(plans.time[job, piece], plans.reserved_until[job])
        end = plans.time[job, piece + 1]
        if gpus == 0 or end <= begin + TIME_TOLERANCE:
            continue
        count = _take(times, free, count, begin, end, sign * gpus, promised)
    return count


@kernel
def occupy(timeline: Timeline, plans: Plans, job: int, sign: int, promised: bool) -> Timeline:
    """Take a plan's GPUs out of the timeline (``sign`` TAKE) or give them back (GIVE_BACK)."""
    timeline = with_room(timeline, 2 * plans.length[job])
    pieces = occupy_in_room(timeline, plans, job, sign, promised)
    return Timeline(timeline.times, timeline.free, pieces)


@kernel
def occupy_all(timeline: Timeline, plans: Plans, order: IntArray, promised: bool) -> Timeline:
    """Take the plans of all jobs in ``order`` out of the timeline."""
    times, free, count = timeline
    for job in order:
        more = 2 * plans.length[job]
        if count + more > times.size:
            times, free, count = with_room(Timeline(times, free, count), more)
        count = occupy_in_room(Timeline(times, free, count), plans, job, TAKE, promised)
    return Timeline(times, free, count)


@kernel
def occupied(opened: Timeline, plans: Plans, order: IntArray, promised: bool) -> Timeline:
    """What the plans of all jobs in ``order`` leave of a timeline, which stays as it is."""
    return occupy_all(timeline_copied(opened), plans, order, promised)


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


@leaf
def free_for(free: IntArray, piece: int, guarded: bool) -> int:
    """GPUs free in a piece: for a promise when ``guarded``, else for any work."""
    room: int = free[EVERYTHING, piece]
    if guarded and free[PROMISES, piece] < room:
        room = free[PROMISES, piece]
    return room


def copy_timeline(timeline: Timeline) -> Timeline:
    """An independent copy."""
    return Timeline(timeline.times.copy(), timeline.free.copy(), timeline.pieces)


@kernel
def timeline_copied(timeline: Timeline) -> Timeline:
    """`copy_timeline` within kernels."""
    return Timeline(timeline.times.copy(), timeline.free.copy(), timeline.pieces)


def overbooked(timeline: Timeline) -> bool:
    """Whether some piece promises more GPUs than there are."""
    return bool((timeline.free[EVERYTHING, : timeline.pieces] < 0).any())
