"""Partitions of tensors into consecutive groups, and those that need no search.

A partition is the tuple of its boundaries: for each group one more than its last tensor, so that the last
boundary is the number of tensors.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from typing import TypeAlias

import numpy as np

from communication.profiles.arrays import Floats

Boundaries: TypeAlias = tuple[int, ...]
MEBIBYTE = 1 << 20
#: Bucket sizes that the paper tries.
BUCKET_BYTES = tuple(size * MEBIBYTE for size in (2, 4, 8, 16, 32, 64))
#: Numbers of groups to try for even splits.
EVEN_GROUPS = range(2, 33)


def checked_boundaries(boundaries: Sequence[int], tensors: int) -> Boundaries:
    """Return the boundaries as a tuple. Raises ValueError unless they ascend from above 0 to ``tensors``."""
    found = tuple(int(one) for one in boundaries)
    ascending = all(one < other for one, other in zip((0, *found), found, strict=False))
    if not found or found[-1] != tensors or not ascending:
        raise ValueError(
            f"the boundaries are {found}; they must ascend from at least 1 to "
            f"{tensors}, the number of tensors"
        )
    return found


def layer_wise(tensors: int) -> Boundaries:
    """Return each tensor as its own group."""
    return tuple(range(1, tensors + 1))


def single_group(tensors: int) -> Boundaries:
    """Return all tensors in one group."""
    return (tensors,)


def even_split(tensors: int, groups: int) -> Boundaries:
    """Return ``groups`` groups, at most one per tensor, whose numbers of tensors differ by at most one,
    larger ones first."""
    count = min(max(1, groups), tensors)
    share, more = divmod(tensors, count)
    sizes = [share + 1] * more + [share] * (count - more)
    return tuple(int(one) for one in np.cumsum(sizes))


def naive_fusion(tensors: int, groups: int = 2) -> Boundaries:
    """Return the public code's partition: steps of N // groups tensors, the remainder in the last group."""
    count = min(max(1, groups), tensors)
    step = tensors // count
    return (*(step * number for number in range(1, count)), tensors)


def bucket_fusion(sizes_bytes: Floats, bucket_bytes: float) -> Boundaries:
    """Return groups that end as soon as they reach ``bucket_bytes``."""
    boundaries, filled = [], 0.0
    for number, size in enumerate(sizes_bytes.tolist(), start=1):
        filled += size
        if filled >= bucket_bytes:
            boundaries.append(number)
            filled = 0.0
    tensors = len(sizes_bytes)
    return tuple(boundaries) if boundaries and boundaries[-1] == tensors else (*boundaries, tensors)


def all_partitions(tensors: int) -> Iterator[Boundaries]:
    """Yield all 2^(N-1) partitions, for brute force over small models."""
    for cuts in range(tensors):
        for chosen in combinations(range(1, tensors), cuts):
            yield (*chosen, tensors)
