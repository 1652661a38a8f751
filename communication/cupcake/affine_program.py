"""The program for affine encoders: comp of a prefix depends only on its length and number of groups.

O(N² · Y) for Y groups. `pareto_program` is more general; this one is its reference.
"""

from __future__ import annotations

import numpy as np

from communication.cupcake.costs import AffineCost
from communication.cupcake.partitions import Boundaries
from communication.cupcake.problem import FusionProblem


def best_affine_fusion(problem: FusionProblem) -> Boundaries:
    """Return the best partition; of equally fast ones one with the fewest groups.

    Raises ValueError unless encoding is affine.
    """
    encode, tensors = problem.encode, problem.tensors
    if not isinstance(encode, AffineCost):
        raise ValueError("the affine program needs an encoder with affine times")
    base = problem.backward_until + encode.seconds_per_byte * problem.bytes_until
    earliest = np.full(tensors + 1, np.inf)
    earliest[0] = 0.0
    # Where the last group begins, by number of groups and length of the prefix.
    begins = np.zeros((tensors + 1, tensors + 1), dtype=np.int64)
    best, groups = np.inf, 0
    no_group = np.tril(np.ones((tensors + 1, tensors + 1), dtype=bool))
    for count in range(1, tensors + 1):
        encoded = base + count * encode.fixed_seconds
        ends = np.maximum(encoded[None, :], earliest[:, None]) + problem.transfer_table
        ends[no_group] = np.inf
        begins[count] = np.argmin(ends, axis=0)
        earliest = ends[begins[count], np.arange(tensors + 1)]
        if earliest[-1] < best * (1.0 - 1e-12):
            best, groups = float(earliest[-1]), count
    boundaries, end = [], tensors
    for count in range(groups, 0, -1):
        boundaries.append(end)
        end = int(begins[count, end])
    return tuple(reversed(boundaries))
