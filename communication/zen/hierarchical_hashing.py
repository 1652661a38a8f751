"""Hierarchical hashing: non-zeros into balanced partitions without losing one (Zen 3.3.3, Algorithm 3.2).

The first-level hash alone decides an index's partition, so that all workers agree; second-level hashes find
it a slot in that partition's parallel memory, and what finds none goes to serial memory. Here all indices
take each round in lockstep and the smallest one wins a slot, so that the same input gives the same table
anywhere. A GPU's kernel claims slots by compare-and-swap: its table may differ, its partitions may not.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil

import numpy as np
from numpy.typing import NDArray

from communication.zen.hash_family import HashFunctions
from communication.zen.indices import Indices

#: Slots of parallel memory over expected non-zeros, all partitions together, as published.
PARALLEL_SHARE = 2.0
#: Slots of serial memory over those of parallel memory.
SERIAL_SHARE = 0.1


@dataclass(frozen=True)
class MemorySize:
    """Slots of each partition.

    Attributes:
        parallel: r1, which hash functions choose from; at least 1.
        serial: r2, filled one after the other.
    """

    parallel: int
    serial: int

    def __post_init__(self) -> None:
        if self.parallel < 1 or self.serial < 0:
            raise ValueError(
                f"memory of {self.parallel} and {self.serial} slots: at least 1 and 0 are needed"
            )


def memory_for(nonzeros: int, parts: int, share: float = PARALLEL_SHARE) -> MemorySize:
    """The memory for so many expected non-zeros: ``share`` times as many slots over all partitions.

    The paper's 2|G|d is the memory of all partitions together (2.11 of the sheet), a load of one half.
    """
    parallel = max(1, ceil(share * nonzeros / parts))
    return MemorySize(parallel, ceil(SERIAL_SHARE * parallel))


@dataclass(frozen=True)
class HashTable:
    """The memory after all indices were written.

    Attributes:
        slots: an index for each slot, 0 where it is empty; shape (partitions, r1 + r2).
        counters: next free serial slot of each partition, counted from the partition's beginning.
        placed: how many indices found a slot in each round, h1 to hk.
        serial: how many went to serial memory: the collisions that are left after k rounds.
        grown: serial slots that some partition had too few, 0 where the memory sufficed.
    """

    slots: NDArray[np.int64]
    counters: NDArray[np.int64]
    placed: tuple[int, ...]
    serial: int
    grown: int

    def partitions(self) -> tuple[Indices, ...]:
        """The indices of each partition, in the order of their slots: all of them, each once."""
        return tuple(row[row > 0] for row in self.slots)


def hierarchical_hash(indices: Indices, parts: int, memory: MemorySize, hashes: HashFunctions) -> HashTable:
    """Write each index into its partition's memory (Algorithm 3.2).

    Serial memory that is too small is grown before anything is written to it: nothing is dropped.
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
    """Which of those that want a slot get it: the first (smallest index) for each slot that is empty."""
    free = np.flatnonzero(memory[slots] == 0)
    _, first = np.unique(slots[free], return_index=True)
    return free[first]
