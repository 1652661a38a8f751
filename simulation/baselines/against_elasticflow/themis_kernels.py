"""Finish-time fairness as a loop: the smallest worst ratio of shared to isolated finish time."""

from __future__ import annotations

from math import inf

import numpy as np

from kernels.compiling import kernel
from scheduling.core.question.snapshot import FloatArray

HALVINGS = 100


@kernel
def _fraction(needed: float, elapsed: float, isolated: float, ratio: float) -> float:
    """Share of time that brings a job to ``ratio``; 1 where no share does."""
    left = ratio * isolated - elapsed
    if left <= needed:
        return 1.0
    return needed / left


@kernel
def fairest_fractions(
    needed: FloatArray, elapsed: FloatArray, isolated: FloatArray, sizes: FloatArray, gpus: float
) -> FloatArray:
    """Shares of time y in [0, 1] with ``sum(y * sizes) <= gpus`` that make the worst finish-time ratio least.

    A job's ratio is ``(elapsed + needed / y) / isolated``, all in seconds: ``needed`` on its own GPUs without
    sharing, ``isolated`` its whole time with an equal share of the cluster. Jobs that cannot reach the ratio
    of the others even with y = 1 get 1; the others then share what is left, with equal ratios. So the shares
    are those of the program "minimise the maximum", and of all its solutions the one that also makes the
    second worst ratio least, and so on.
    """
    count = needed.size
    shares = np.ones(count)
    total = 0.0
    for job in range(count):
        total += sizes[job]
    if total <= gpus:
        return shares
    low = 0.0
    high = 1.0
    while True:
        used = 0.0
        for job in range(count):
            used += sizes[job] * _fraction(needed[job], elapsed[job], isolated[job], high)
        if used <= gpus or high == inf:
            break
        low = high
        high *= 2.0
    for _ in range(HALVINGS):
        middle = 0.5 * (low + high)
        used = 0.0
        for job in range(count):
            used += sizes[job] * _fraction(needed[job], elapsed[job], isolated[job], middle)
        if used <= gpus:
            high = middle
        else:
            low = middle
    for job in range(count):
        shares[job] = _fraction(needed[job], elapsed[job], isolated[job], high)
    return shares
