"""Divide GPUs among jobs at the least total cost, one size for each job."""

from __future__ import annotations

from math import inf

import numpy as np

from kernels.compiling import kernel
from scheduling.core.question.snapshot import FloatArray, IntArray


@kernel
def cheapest_exactly(cost: FloatArray, sizes: IntArray, gpus: int) -> IntArray:
    """Choose a column of each row of ``cost`` with the least total such that the chosen ``sizes`` fit
    ``gpus`` GPUs.

    Column 0 has size 0. Exact, by dynamic programming over jobs and GPUs; among equal totals the one with
    fewer GPUs.
    """
    rows, columns = cost.shape
    best = np.zeros(gpus + 1)
    chosen = np.zeros((rows, gpus + 1), dtype=np.int8)
    for row in range(rows):
        after = np.full(gpus + 1, inf)
        for have in range(gpus + 1):
            for column in range(columns):
                size = sizes[row, column]
                if size > have or cost[row, column] == inf:
                    continue
                total = best[have - size] + cost[row, column]
                if total < after[have]:
                    after[have] = total
                    chosen[row, have] = column
        best = after
    result = np.zeros(rows, dtype=np.int64)
    have = gpus
    for row in range(rows - 1, -1, -1):
        result[row] = chosen[row, have]
        have -= sizes[row, result[row]]
    return result


@kernel
def cheapest_greedily(cost: FloatArray, sizes: IntArray, gpus: int) -> IntArray:
    """Like `cheapest_exactly`, but greedy: repeat the change that saves most for each GPU while one fits."""
    rows, columns = cost.shape
    result = np.zeros(rows, dtype=np.int64)
    step = np.zeros(rows, dtype=np.int64)
    saving = np.zeros(rows)
    stale = np.ones(rows, dtype=np.bool_)
    while True:
        best = -1
        for row in range(rows):
            now = result[row]
            if stale[row] or (saving[row] > 0.0 and sizes[row, step[row]] - sizes[row, now] > gpus):
                saving[row] = 0.0
                for column in range(now + 1, columns):
                    more = sizes[row, column] - sizes[row, now]
                    if cost[row, column] == inf or more > gpus:
                        continue
                    each = (cost[row, now] - cost[row, column]) / more
                    if each > saving[row]:
                        saving[row] = each
                        step[row] = column
                stale[row] = False
            if saving[row] > 0.0 and (best < 0 or saving[row] > saving[best]):
                best = row
        if best < 0:
            return result
        gpus -= sizes[best, step[best]] - sizes[best, result[best]]
        result[best] = step[best]
        stale[best] = True
