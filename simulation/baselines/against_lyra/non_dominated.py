"""Selection of survivors in a search with two objectives: non-dominated sorting and crowding (Deb et al.,
NSGA-II, 2002, section III)."""

from __future__ import annotations

from math import inf

import numpy as np

from kernels.compiling import kernel
from scheduling.core.question.snapshot import FloatArray, IntArray


@kernel
def fronts(first: FloatArray, second: FloatArray) -> IntArray:
    """The front of every member; greater objectives are better.

    Front 0 has the members that no other member dominates: none is better in one objective without being
    worse in the other. Of members that are equal in both objectives, the first counts; the rest are placed
    behind all fronts.
    """
    size = first.size
    front = np.full(size, size)
    best = np.empty(size)
    opened = 0
    last = -1
    for member in _descending(first, second):
        if last >= 0 and first[last] == first[member] and second[last] == second[member]:
            continue
        last = member
        # Earlier members are at least as good in the first objective, so the second one decides.
        place = 0
        while place < opened and best[place] >= second[member]:
            place += 1
        if place == opened:
            opened += 1
        best[place] = second[member]
        front[member] = place
    return front


@kernel
def _descending(first: FloatArray, second: FloatArray) -> IntArray:
    """Members by the first objective, then the second, then their number."""
    by_second = np.argsort(-second, kind="mergesort")
    return by_second[np.argsort(-first[by_second], kind="mergesort")]


@kernel
def crowding(first: FloatArray, second: FloatArray, front: IntArray) -> FloatArray:
    """The distance between a member's neighbours on its front, relative to the front's extent; infinite at
    both ends."""
    size = first.size
    apart = np.zeros(size)
    order = _descending(first, second)
    for number in range(size):
        members = order[front[order] == number]
        count = members.size
        if count == 0:
            break
        apart[members[0]] = inf
        apart[members[count - 1]] = inf
        width = max(first[members[0]] - first[members[count - 1]], 1e-300)
        height = max(second[members[count - 1]] - second[members[0]], 1e-300)
        for place in range(1, count - 1):
            before, after = members[place - 1], members[place + 1]
            apart[members[place]] = (first[before] - first[after]) / width
            apart[members[place]] += (second[after] - second[before]) / height
    return apart


@kernel
def survivors(front: IntArray, apart: FloatArray, count: int) -> IntArray:
    """Members in the order of their fronts, the most isolated of a front first; the first ``count``
    survive."""
    by_distance = np.argsort(-apart, kind="mergesort")
    return by_distance[np.argsort(front[by_distance], kind="mergesort")][:count]
