"""Neighbours merged before the search, where so many tensors would take the exact program long."""

from __future__ import annotations

import numpy as np

from communication.cupcake.partitions import Boundaries, layer_wise
from communication.cupcake.problem import FusionProblem

#: Up to so many tensors the exact program takes less than a second or two.
MOST_FUSED_EXACTLY = 512


def merged_neighbours(
    problem: FusionProblem, most: int = MOST_FUSED_EXACTLY
) -> tuple[FusionProblem, Boundaries]:
    """A problem of at most ``most`` tensors, and the boundaries of those that each of them stands for.

    It is the problem itself where that has no more. Otherwise neighbours are merged until together they have
    2 / ``most`` of all bytes or of the backward pass.
    """
    tensors = problem.tensors
    if tensors <= most:
        return problem, layer_wise(tensors)
    share = 2.0 / (most - 1)
    size_share = problem.bytes_until / max(float(problem.bytes_until[-1]), 1e-300)
    time_share = problem.backward_until / max(float(problem.backward_until[-1]), 1e-300)
    ends, begin = [], 0
    for end in range(1, tensors):
        filled = max(size_share[end] - size_share[begin], time_share[end] - time_share[begin])
        if filled >= share:
            ends.append(end)
            begin = end
    boundaries = (*ends, tensors)
    merged = FusionProblem(
        np.diff(problem.backward_until[[0, *boundaries]]),
        np.diff(problem.bytes_until[[0, *boundaries]]),
        problem.encode,
        problem.transfer,
        problem.other_seconds,
        problem.ending,
    )
    return merged, boundaries
