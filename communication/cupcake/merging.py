"""Merging of neighbours before the search, for models with too many tensors for the exact program."""

from __future__ import annotations

import numpy as np

from communication.cupcake.partitions import Boundaries, layer_wise
from communication.cupcake.problem import FusionProblem

#: Up to this many tensors the exact program takes at most two seconds.
MOST_FUSED_EXACTLY = 512


def merged_neighbours(
    problem: FusionProblem, most: int = MOST_FUSED_EXACTLY
) -> tuple[FusionProblem, Boundaries]:
    """Return a problem of at most ``most`` tensors, and the boundaries of the tensors that each stands for.

    A problem that is small enough is returned unchanged. Otherwise neighbours are merged until together they
    have about 2 / ``most`` of all bytes or of the backward pass.
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
