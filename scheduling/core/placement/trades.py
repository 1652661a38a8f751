"""Trades: jobs that wait for each other's GPUs.

A job can take GPUs only after their holder has left them. If jobs wait for each other in a circle, none of
them can move. Then one of them is suspended first.
"""

from __future__ import annotations

import numpy as np

from kernels.compiling import kernel, whole
from scheduling.core.placement.buddy_blocks import Blocks
from scheduling.core.placement.occupancy import Occupancy, addresses_of
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray

NOBODY = whole(-1)


@kernel
def _dependencies(
    blocks: Blocks, occupancy: Occupancy, before: IntArray, changed: IntArray
) -> tuple[IntArray, list[int]]:
    """For each changed job, the changed jobs whose GPUs it takes.

    Returns (offsets, needs): position i waits for the positions ``needs[offsets[i]:offsets[i + 1]]``.
    """
    position = np.full(occupancy.base.size, -1)
    for index in range(changed.size):
        position[changed[index]] = index
    offsets = np.zeros(changed.size + 1, dtype=np.int64)
    needs = [0 for _ in range(0)]
    seen = np.full(changed.size, -1)
    for index in range(changed.size):
        for address in addresses_of(blocks, occupancy, changed[index]):
            holder = before[address]
            if holder < 0 or holder == changed[index] or position[holder] < 0:
                continue
            if seen[position[holder]] != index:
                seen[position[holder]] = index
                needs.append(position[holder])
        offsets[index + 1] = len(needs)
    return offsets, needs


@kernel
def _circle(start: int, offsets: IntArray, needs: list[int], waiting: BoolArray) -> tuple[bool, BoolArray]:
    """Whether ``start`` waits for itself, directly or not, and True for each job that it waits for."""
    reached = np.zeros(offsets.size - 1, dtype=np.bool_)
    stack = [start]
    closed = False
    while len(stack) > 0:
        index = stack.pop()
        for edge in range(offsets[index], offsets[index + 1]):
            other = needs[edge]
            if other == start:
                closed = True
            if waiting[other] and not reached[other]:
                reached[other] = True
                stack.append(other)
    return closed, reached


@kernel
def _first_to_suspend(
    changed: IntArray, suspension_order: IntArray, offsets: IntArray, needs: list[int], stuck: BoolArray
) -> tuple[int, BoolArray]:
    """The stuck job that is suspended first of those in a circle, and the jobs that it waits for."""
    stuck_ones = np.flatnonzero(stuck)
    for index in stuck_ones[np.argsort(suspension_order[changed[stuck_ones]], kind="mergesort")]:
        closed, reached = _circle(index, offsets, needs, stuck)
        if closed:
            return index, reached
    return NOBODY, stuck  # never reached: every stuck job waits, directly or not, for a circle


@kernel
def break_trades(
    blocks: Blocks,
    occupancy: Occupancy,
    before: IntArray,
    changed: IntArray,
    pause: FloatArray,
    suspension_order: IntArray,
) -> tuple[IntArray, BoolArray, FloatArray]:
    """An order in which the ``changed`` jobs can change, and the jobs that are suspended to break circles.

    ``before``: the job that holds each address before the changes, negative for none; jobs that end are left
    out. ``pause`` (seconds) and ``suspension_order`` are by row; the job that is first in that order in a
    circle is suspended. Returns (positions in ``changed``, in order; True for each suspended job; extra pause
    in seconds). The extra pause of a suspended job is the longest pause of the jobs that it waits for.
    """
    count = changed.size
    if count == 1:
        return np.zeros(1, dtype=np.int64), np.zeros(1, dtype=np.bool_), np.zeros(1)
    offsets, needs = _dependencies(blocks, occupancy, before, changed)
    waiting = np.ones(count, dtype=np.bool_)
    suspended = np.zeros(count, dtype=np.bool_)
    waits = np.zeros(count)
    order = np.empty(count, dtype=np.int64)
    done = 0
    while done < count:
        before_pass = done
        for index in range(count):
            if not waiting[index]:
                continue
            ready = True
            for edge in range(offsets[index], offsets[index + 1]):
                if waiting[needs[edge]] and not suspended[needs[edge]]:
                    ready = False
            if ready:
                waiting[index] = False
                order[done] = index
                done += 1
        if done > before_pass:
            continue
        victim, reached = _first_to_suspend(changed, suspension_order, offsets, needs, waiting & ~suspended)
        suspended[victim] = True
        for index in range(count):
            if reached[index] and index != victim and pause[changed[index]] > waits[victim]:
                waits[victim] = pause[changed[index]]
    return order, suspended, waits
