"""Hierarchical hashing: non-zeros into balanced partitions without loss (Zen 3.3.3, Algorithm 3.2).

The first-level hash alone decides an index's partition, so that all workers agree. Second-level hashes find a
slot in the partition's parallel memory; indices without a slot go to serial memory. Here all indices take
each round in lockstep and the smallest one wins a slot, so that the same input gives the same table anywhere.
A GPU kernel claims slots by compare-and-swap: its table may differ, but not its partitions.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from communication.zen.hash_family import HashFunctions
from communication.zen.indices import Indices

#: Slots of parallel memory over expected non-zeros, over all partitions, as published.
PARALLEL_SHARE = 2.0
#: Slots of serial memory over those of parallel memory.
SERIAL_SHARE = 0.1


@dataclass(frozen=True)
class MemorySize:
    """Slots of each partition.

    Attributes:
        parallel: r1, the range of the hash functions; at least 1.
        serial: r2, filled in sequence.
    """

    parallel: int
    serial: int

    def __post_init__(self) -> None:
        if self.parallel < 1 or self.serial < 0:
            raise ValueError(
                f"there are {self.parallel} parallel and {self.serial} serial slots; "
                "there must be at least 1 and 0"
            )


def memory_for(nonzeros: int, parts: int, share: float = PARALLEL_SHARE) -> MemorySize:
    """Return the memory for ``nonzeros`` expected non-zeros: ``share`` times as many slots in all partitions.

    The paper's 2|G|d is the memory of all partitions together (2.11 of the sheet), a load of one half.
    """
    parallel = max(1, ceil(share * nonzeros / parts))
    return MemorySize(parallel, ceil(SERIAL_SHARE * parallel))


@dataclass(frozen=True)
class HashTable:
    """The memory after all indices were written.

    Attributes:
        slots: an index for each slot, 0 if empty; shape (partitions, r1 + r2).
        counters: next free serial slot of each partition, counted from the partition's beginning.
        placed: indices that found a slot in each round, h1 to hk.
        serial: indices in serial memory: the collisions left after k rounds.
        grown: largest number of serial slots that a partition lacked; 0 if the memory sufficed.
    """

    slots: NDArray[np.int64]
    counters: NDArray[np.int64]
    placed: tuple[int, ...]
    serial: int
    grown: int

    def partitions(self) -> tuple[Indices, ...]:
        """Return the indices of each partition, in the order of their slots: all of them, each once."""
        return tuple(row[row > 0] for row in self.slots)


def hierarchical_hash(indices: Indices, parts: int, memory: MemorySize, hashes: HashFunctions) -> HashTable:
    """Write each index into its partition's memory (Algorithm 3.2).

    Serial memory that is too small is grown before it is written: no index is dropped.
    """
    parallel: NDArray[np.int64] = np.zeros((parts, memory.parallel), np.int64)
    flat = parallel.reshape(-1)
    pending = np.sort(indices)
    partition = hashes.partition(pending, parts)
    placed = []
    for level in range(1, hashes.rehashes + 1):
        slots = partition * memory.parallel + hashes.slot(level, pending, memory.parallel)
        winners = _winners(flat, slots)
        flat[slots[winners]] = pending[winners]
        placed.append(len(winners))
        lost = np.ones(len(pending), bool)
        lost[winners] = False
        pending, partition = pending[lost], partition[lost]
    counts = np.bincount(partition, minlength=parts)
    needed = int(counts.max(initial=0))
    serial: NDArray[np.int64] = np.zeros((parts, max(memory.serial, needed)), np.int64)
    for part in np.flatnonzero(counts):
        serial[part, : counts[part]] = pending[partition == part]
    return HashTable(
        np.concatenate([parallel, serial], axis=1),
        memory.parallel + counts,
        tuple(placed),
        len(pending),
        max(0, needed - memory.serial),
    )


def _winners(memory: NDArray[np.int64], slots: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the winners: for each empty slot, the first (smallest) index that maps to it."""
    free = np.flatnonzero(memory[slots] == 0)
    _, first = np.unique(slots[free], return_index=True)
    return free[first]
