"""Strawmen that Zen is compared with: one hash into flat memory, which is lossy, and cut points, which age.

Both are published baselines (Zen 3.3.2, Algorithm 3.1); neither synchronises anything here.
"""

from __future__ import annotations

from math import expm1

import numpy as np
from numpy.typing import NDArray

from communication.zen.hash_family import HashFunctions
from communication.zen.indices import Indices


def one_hash(indices: Indices, parts: int, slots: int, hashes: HashFunctions) -> tuple[Indices, ...]:
    """Run Algorithm 3.1: each index overwrites its slot of ``parts * slots``; return the remaining indices by
    partition, in the order of slots. Of colliding indices the last in ``indices`` remains."""
    memory: NDArray[np.int64] = np.zeros((parts, slots), np.int64)
    flat = memory.reshape(-1)
    flat[hashes.partition(indices, parts * slots)] = indices
    return tuple(row[row > 0] for row in memory)


def expected_loss(load: float) -> float:
    """Return the share of indices that one ideal hash overwrites; ``load``: indices over slots."""
    return 1.0 + expm1(-load) / load if load > 0 else 0.0


def cut_points(indices: Indices, parts: int) -> NDArray[np.int64]:
    """Return the cuts of these indices into equal runs: the data-dependent strawman, whose balance is lost
    with other indices."""
    if not len(indices):
        return np.zeros(parts - 1, np.int64)
    return indices[np.arange(1, parts) * len(indices) // parts]


def cut_parts(indices: Indices, cuts: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the part of each index by cut points of another iteration."""
    return np.searchsorted(cuts, indices, side="right")
