"""The multiple-choice knapsack that divides GPUs among flexible demands (Lyra section 3.5.2).

Each group is a job. Each item of a group is a number of workers beyond the job's base: its weight is the GPUs
of these workers, its value the time they save. At most one item of each group is chosen. Dynamic programming
over the capacity finds the greatest total value.
"""

from __future__ import annotations

import heapq
import math
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernels.compiling import kernel
from scheduling.core.question.snapshot import FloatArray, IntArray

NO_ITEM = -1

WORK_LIMIT = 500_000_000
"""Product of capacity and items up to which the optimum is computed: a few tenths of a second on one core."""

_TIE = 1e-10
"""Totals that differ by less than this part of the best one are equal, because sums depend on the order of
addition."""

_CELLS_KEPT = 4_000_000
"""Totals kept at once where that spares a second computation (32 MB)."""


class ItemGroups(NamedTuple):
    """The groups and items of one knapsack. Items are numbered over all groups."""

    #: Items of group i are ``offsets[i]`` to ``offsets[i + 1]``.
    offsets: IntArray
    #: GPUs of each item, at least 1, ascending within a group.
    weight: IntArray
    #: Value of each item.
    value: FloatArray
    #: The item that each group holds now, or `NO_ITEM`.
    present: IntArray


@dataclass(frozen=True)
class Choice:
    """The chosen items of one knapsack."""

    #: Item number of each group, or `NO_ITEM`.
    chosen: IntArray
    #: Total weight of the chosen items.
    weight: int
    #: Total value of the chosen items.
    value: float
    #: Whether this is proved optimal; false only above the work limit.
    exact: bool
    #: Number of groups.
    groups: int
    #: Number of items.
    items: int
    #: Capacity in the unit of the weights.
    capacity: int


def choose_items(groups: ItemGroups, capacity: int, work_limit: int = WORK_LIMIT) -> Choice:
    """Choose the items of the greatest total value whose weight is at most ``capacity``.

    Among equal values, present items are kept; then fewer extra workers win. Where capacity times items
    exceeds ``work_limit`` (both divided by the weights' greatest common divisor), items are chosen greedily
    by value per weight; then each group changes once to its best item that fits. Raises ValueError for
    weights below 1 or not ascending within a group.
    """
    if not _is_ascending(groups.offsets, groups.weight):
        raise ValueError("weights must be at least 1 and ascend within a group")
    chosen, exact = chosen_items(*groups, capacity, work_limit)
    taken = chosen[chosen != NO_ITEM]
    return Choice(
        chosen,
        int(groups.weight[taken].sum()),
        float(groups.value[taken].sum()),
        bool(exact),
        groups.present.size,
        groups.weight.size,
        capacity,
    )


@kernel
def _is_ascending(offsets: IntArray, weight: IntArray) -> bool:
    """Whether the weights are ascending within each group."""
    for group in range(offsets.size - 1):
        before = 0
        for item in range(offsets[group], offsets[group + 1]):
            if weight[item] <= before:
                return False
            before = weight[item]
    return True


@kernel
def chosen_items(
    offsets: IntArray, weight: IntArray, value: FloatArray, present: IntArray, capacity: int, work_limit: int
) -> tuple[IntArray, bool]:
    """Item number of each group (or `NO_ITEM`), and whether this is the optimum. See `choose_items`."""
    unit = 0
    for item_weight in weight:
        unit = math.gcd(unit, item_weight)
    if unit == 0 or capacity < unit:
        return np.full(present.size, NO_ITEM), True
    weight = weight // unit
    capacity //= unit
    chosen, fits = _everybody_best(offsets, weight, value, present, capacity)
    if fits:
        return chosen, True
    if capacity * weight.size <= work_limit:
        return _best_items(offsets, weight, value, present, capacity), True
    return _greedy_items(offsets, weight, value, capacity), False


@kernel
def _everybody_best(
    offsets: IntArray, weight: IntArray, value: FloatArray, present: IntArray, capacity: int
) -> tuple[IntArray, bool]:
    """The most valuable item of every group, and whether all of them fit together."""
    chosen = np.full(present.size, NO_ITEM)
    total = 0
    for group in range(present.size):
        best = 0.0
        for item in range(offsets[group], offsets[group + 1]):
            best = max(best, value[item])
        held = present[group]
        if held != NO_ITEM and value[held] >= best * (1.0 - _TIE):
            chosen[group] = held
        elif best > 0.0:
            for item in range(offsets[group], offsets[group + 1]):
                if value[item] >= best * (1.0 - _TIE):
                    chosen[group] = item
                    break
        if chosen[group] != NO_ITEM:
            total += weight[chosen[group]]
    return chosen, total <= capacity


@kernel
def _add_group(
    totals: FloatArray, following: FloatArray, weight: IntArray, value: FloatArray, low: int, high: int
) -> None:
    """Update the best totals by capacity with the items of one more group, for capacities ``low`` to
    ``high``."""
    following[low : high + 1] = totals[low : high + 1]
    for item in range(weight.size):
        start = max(low, weight[item])
        # Slices from zero on let the compiler prove that no index is negative, and use vector instructions.
        source = totals[start - weight[item] : high + 1 - weight[item]]
        target = following[start : high + 1]
        gain = value[item]
        for position in range(target.size):
            total = source[position] + gain
            target[position] = total if total > target[position] else target[position]


@kernel
def _lowest_capacities(offsets: IntArray, weight: IntArray, capacity: int) -> IntArray:
    """For each group, the least capacity that the groups after it can leave; smaller ones need no
    computation."""
    groups = offsets.size - 1
    lowest = np.empty(groups + 1, dtype=np.int64)
    lowest[groups] = capacity
    for group in range(groups - 1, -1, -1):
        heaviest = weight[offsets[group + 1] - 1] if offsets[group + 1] > offsets[group] else 0
        lowest[group] = max(0, lowest[group + 1] - heaviest)
    return lowest


@kernel
def _best_items(
    offsets: IntArray, weight: IntArray, value: FloatArray, present: IntArray, capacity: int
) -> IntArray:
    """Dynamic programming over groups and capacities.

    Totals are exact maxima and do not depend on the present items; these decide only between equal totals on
    the way back. So a second run that starts from the first choice makes the same choice. Rows of totals are
    kept for one block of groups at a time, plus the row before each block: memory grows with the square root
    of the number of groups.
    """
    groups = present.size
    block = groups
    if groups * (capacity + 1) > _CELLS_KEPT:
        block = math.ceil(math.sqrt(groups))
    blocks = -(-groups // block)
    lowest = _lowest_capacities(offsets, weight, capacity)
    before_block = np.zeros((blocks, capacity + 1))
    rows = np.zeros((block + 1, capacity + 1))
    for number in range(blocks - 1):
        _fill_rows(
            before_block[number], rows, offsets, weight, value, lowest, number * block, block, capacity
        )
        before_block[number + 1] = rows[block]
    chosen = np.full(groups, NO_ITEM)
    left = capacity
    tolerance = -1.0
    for number in range(blocks - 1, -1, -1):
        first = number * block
        count = min(block, groups - first)
        _fill_rows(before_block[number], rows, offsets, weight, value, lowest, first, count, left)
        if tolerance < 0.0:
            tolerance = _TIE * rows[count, left]
        for group in range(first + count - 1, first - 1, -1):
            row = group - first
            reach = rows[row + 1, left] - tolerance
            item = _item_reaching(rows[row], left, reach, offsets, weight, value, present, group)
            chosen[group] = item
            if item != NO_ITEM:
                left -= weight[item]
    return chosen


@kernel
def _fill_rows(
    start: FloatArray,
    rows: FloatArray,
    offsets: IntArray,
    weight: IntArray,
    value: FloatArray,
    lowest: IntArray,
    first: int,
    count: int,
    high: int,
) -> None:
    """Fill row r with the best totals by capacity of the first ``first + r`` groups."""
    rows[0] = start
    for row in range(count):
        group = first + row
        items = slice(offsets[group], offsets[group + 1])
        low = min(lowest[group + 1], high)
        _add_group(rows[row], rows[row + 1], weight[items], value[items], low, high)


@kernel
def _item_reaching(
    totals: FloatArray,
    left: int,
    reach: float,
    offsets: IntArray,
    weight: IntArray,
    value: FloatArray,
    present: IntArray,
    group: int,
) -> int:
    """The item that reaches a given total: the present one if it does, else none, else the lightest."""
    held: int = present[group]
    if held != NO_ITEM and weight[held] <= left and totals[left - weight[held]] + value[held] >= reach:
        return held
    if totals[left] >= reach:
        return NO_ITEM
    for item in range(offsets[group], offsets[group + 1]):
        if weight[item] <= left and totals[left - weight[item]] + value[item] >= reach:
            return item
    return NO_ITEM


@kernel
def _steepest_item(
    offsets: IntArray, weight: IntArray, value: FloatArray, group: int, held: int, left: int
) -> tuple[int, float]:
    """The item above the held one that fits and gains most per weight, and that gain."""
    best = NO_ITEM
    best_slope = 0.0
    held_weight = weight[held] if held != NO_ITEM else 0
    held_value = value[held] if held != NO_ITEM else 0.0
    first = held + 1 if held != NO_ITEM else offsets[group]
    for item in range(first, offsets[group + 1]):
        if weight[item] - held_weight > left:
            break
        slope = (value[item] - held_value) / (weight[item] - held_weight)
        if slope > best_slope:
            best = item
            best_slope = slope
    return best, best_slope


@kernel
def _greedy_items(offsets: IntArray, weight: IntArray, value: FloatArray, capacity: int) -> IntArray:
    """Choose items greedily by value per weight; then let each group change once to its best item that
    fits."""
    groups = offsets.size - 1
    chosen = np.full(groups, NO_ITEM)
    left = capacity
    queue = [(0.0, 0, 0) for _ in range(0)]
    for group in range(groups):
        item, slope = _steepest_item(offsets, weight, value, group, NO_ITEM, left)
        if item != NO_ITEM:
            heapq.heappush(queue, (-slope, group, item))
    while len(queue) > 0:
        _, group, item = heapq.heappop(queue)
        held = chosen[group]
        extra = weight[item] - (weight[held] if held != NO_ITEM else 0)
        if extra <= left:
            chosen[group] = item
            left -= extra
        item, slope = _steepest_item(offsets, weight, value, group, chosen[group], left)
        if item != NO_ITEM:
            heapq.heappush(queue, (-slope, group, item))
    for group in range(groups):
        held = chosen[group]
        room = left + (weight[held] if held != NO_ITEM else 0)
        for item in range(offsets[group], offsets[group + 1]):
            if weight[item] > room:
                break
            if value[item] > (value[chosen[group]] if chosen[group] != NO_ITEM else 0.0):
                chosen[group] = item
        left = room - (weight[chosen[group]] if chosen[group] != NO_ITEM else 0)
    return chosen
