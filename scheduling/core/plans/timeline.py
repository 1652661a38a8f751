"""Free capacity over time as a piecewise constant function."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.compiling import ZERO, kernel, leaf, whole
from scheduling.core.question.arrays import TIME_TOLERANCE, Plans
from scheduling.core.question.snapshot import FloatArray, IntArray


class Timeline(NamedTuple):
    """Free capacity in pieces. A promise must fit both rows of ``free``, other work row 0.

    Kernels change the arrays in place. After a call, use the timeline that it returned, not its argument.
    """

    #: When each piece begins, in seconds from now; the last piece has no end.
    times: FloatArray
    #: Free GPUs of each piece. Row 0: all usable GPUs less all plans. Row 1: the GPUs that may back promises
    #: (all but the failure reserve) less promised plans.
    free: IntArray
    #: Number of pieces in use; the arrays may be longer.
    pieces: int


#: Row 0 of ``free``.
EVERYTHING = 0
#: Row 1 of ``free``.
PROMISES = 1
TAKE = whole(1)
GIVE_BACK = whole(-1)
ONE_TAKING = whole(2)
"""The most pieces that one taking of GPUs adds."""


def new_timeline(start: float, gpus: int, promise_gpus: int) -> Timeline:
    """A timeline on which all ``gpus`` are free from ``start`` on, ``promise_gpus`` of them for promises."""
    times = np.zeros(64)
    free = np.zeros((2, 64), dtype=np.int64)
    times[0] = start
    free[0, 0] = gpus
    free[1, 0] = promise_gpus
    return Timeline(times, free, 1)


@leaf
def piece_at(times: FloatArray, count: int, at: float) -> int:
    """Index of the piece that covers ``at``; the first piece if ``at`` is before it."""
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
    """The number of GPUs that stay free from the timeline's beginning to ``until``."""
    times, free, count = timeline
    left: int = max(free[EVERYTHING, 0], ZERO)
    for piece in range(1, count):
        if times[piece] >= until - TIME_TOLERANCE:
            break
        left = max(min(left, free[EVERYTHING, piece]), ZERO)
    return left


@kernel
def with_room(timeline: Timeline, more: int) -> Timeline:
    """The same timeline in arrays with room for at least ``more`` further pieces."""
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
    """Make ``at`` a breakpoint; the arrays need room for it. Returns (number of pieces, its index)."""
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
    """`take` in place; the arrays need room for two more pieces. Returns the number of pieces."""
    count, first = _split(times, free, count, begin)
    count, last = _split(times, free, count, end)
    for index in range(first, last):
        free[EVERYTHING, index] -= gpus
        if promised:
            free[PROMISES, index] -= gpus
    return count


@kernel
def take(timeline: Timeline, begin: float, end: float, gpus: int, promised: bool) -> Timeline:
    """Take ``gpus`` GPUs out of the timeline on ``[begin, end)``; from both rows if ``promised``."""
    times, free, count = with_room(timeline, ONE_TAKING)
    return Timeline(times, free, _take(times, free, count, begin, end, gpus, promised))


@leaf
def occupy_in_room(timeline: Timeline, plans: Plans, job: int, sign: int, promised: bool) -> int:
    """`occupy` in place; the arrays need room for two more pieces per piece of the plan.

    Returns the number of pieces.
    """
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
    """A copy of the timeline ``opened`` without the GPUs of the plans of all jobs in ``order``."""
    return occupy_all(timeline_copied(opened), plans, order, promised)


@kernel
def compact(timeline: Timeline) -> Timeline:
    """Merge equal neighbours in place."""
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
    """Free GPUs in a piece: for a new promise if ``guarded``, else for any work."""
    room: int = free[EVERYTHING, piece]
    if guarded and free[PROMISES, piece] < room:
        room = free[PROMISES, piece]
    return room


def copy_timeline(timeline: Timeline) -> Timeline:
    """An independent copy."""
    return Timeline(timeline.times.copy(), timeline.free.copy(), timeline.pieces)


@kernel
def timeline_copied(timeline: Timeline) -> Timeline:
    """`copy_timeline` for kernels."""
    return Timeline(timeline.times.copy(), timeline.free.copy(), timeline.pieces)


def overbooked(timeline: Timeline) -> bool:
    """Whether the plans take more GPUs in some piece than there are."""
    return bool((timeline.free[EVERYTHING, : timeline.pieces] < 0).any())
