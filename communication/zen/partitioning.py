"""Partitions by the first-level hash alone: the production path, and the tables for short bitmaps.

A counting sort by h0 gives the same partitions as hierarchical hashing (Zen, Algorithm 3.2) without memory
for slots, and faster on a CPU.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from communication.zen.hash_family import HashFunctions
from communication.zen.indices import Indices, checked_elements

MOST_PARTS = 2**15


@dataclass(frozen=True)
class Partitioned:
    """Indices in sending order.

    Attributes:
        order: positions in the input, partition by partition, ascending within each.
        counts: number in each partition.
    """

    order: NDArray[np.int64]
    counts: NDArray[np.int64]

    def split(self, values: NDArray[np.generic]) -> list[NDArray[np.generic]]:
        """Return the values of the indices, cut into partitions."""
        return np.split(values[self.order], np.cumsum(self.counts)[:-1])


def partitioned(indices: Indices, parts: int, hashes: HashFunctions) -> Partitioned:
    """Assign each index to one of ``parts`` partitions by h0."""
    if not 1 <= parts <= MOST_PARTS:
        raise ValueError(f"there are {parts} partitions; there must be 1 to {MOST_PARTS}")
    # A stable sort of small integers is a counting sort.
    part = hashes.partition(indices, parts).astype(np.int16)
    return Partitioned(np.argsort(part, kind="stable"), np.bincount(part, minlength=parts))


@dataclass(frozen=True)
class PartitionTable:
    """All indices of a tensor by partition: computed once per tensor, seed and number of servers.

    Attributes:
        members: P_i of each partition i: all indices with h0 = i, ascending; int32.
        position: place of each index (at index - 1) in its partition; int32.
    """

    members: tuple[NDArray[np.int32], ...]
    position: NDArray[np.int32]

    @property
    def elements(self) -> int:
        """Elements of the tensor."""
        return len(self.position)


def partition_table(elements: int, parts: int, hashes: HashFunctions) -> PartitionTable:
    """Return the table of a tensor. With fewer elements than partitions some are empty."""
    indices = np.arange(1, checked_elements(elements) + 1, dtype=np.int64)
    found = partitioned(indices, parts, hashes)
    position = np.empty(elements, np.int32)
    members = []
    for places in np.split(found.order, np.cumsum(found.counts)[:-1]):
        position[places] = np.arange(len(places), dtype=np.int32)
        members.append((places + 1).astype(np.int32))
    return PartitionTable(tuple(members), position)
