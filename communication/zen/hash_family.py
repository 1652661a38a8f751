"""The hash functions of Zen: MurmurHash3 with one seed per function, equal on all workers (Zen 3.4.1).

A function of the family is MurmurHash3 x86-32 over the four bytes of one index, little-endian, with a 32-bit
seed, modulo the size of its range. `h0` uses the first seed, `h1` to `hk` the others in order. All arithmetic
is unsigned 32-bit. PyTorch has none on a GPU: int64 tensors give the same bits if each product, sum and left
shift is masked by 0xFFFFFFFF, because the lower 32 bits of a product that wraps around at 64 are right.
"""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass
from itertools import count
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from communication.zen.indices import Indices

#: Constants of MurmurHash3 x86-32 for one block of four bytes, shared with the GPU implementation.
BLOCK_FIRST, BLOCK_SECOND = 0xCC9E2D51, 0x1B873593
STATE_FACTOR, STATE_ADDEND = 5, 0xE6546B64
FINAL_FIRST, FINAL_SECOND = 0x85EBCA6B, 0xC2B2AE35
BLOCK_ROTATION, STATE_ROTATION = 15, 13
KEY_BYTES = 4

#: Keys hashed at a time, so that intermediate results stay in a processor's cache.
BLOCK_KEYS = 1 << 15

#: Second-level functions, as published: cost falls from one to three and is flat at four.
REHASHES = 3
MOST_REHASHES = 16
#: Indices whose partitions enter a checksum of the seeds.
PROBES = 4096


def murmur3(keys: NDArray[np.uint32], seed: int) -> NDArray[np.uint32]:
    """Return the MurmurHash3 x86-32 of each key, as four little-endian bytes, with a 32-bit seed."""
    block = keys * np.uint32(BLOCK_FIRST)
    block = _rotated(block, BLOCK_ROTATION) * np.uint32(BLOCK_SECOND)
    state = _rotated(block ^ np.uint32(seed), STATE_ROTATION)
    state = state * np.uint32(STATE_FACTOR) + np.uint32(STATE_ADDEND)
    state ^= np.uint32(KEY_BYTES)
    state ^= state >> np.uint32(16)
    state *= np.uint32(FINAL_FIRST)
    state ^= state >> np.uint32(13)
    state *= np.uint32(FINAL_SECOND)
    state ^= state >> np.uint32(16)
    return state


def _rotated(words: NDArray[np.uint32], bits: int) -> NDArray[np.uint32]:
    return (words << np.uint32(bits)) | (words >> np.uint32(32 - bits))


class HashFunctions(Protocol):
    """The hash functions that hierarchical hashing needs; `HashFamily` implements it."""

    @property
    def rehashes(self) -> int:
        """k: the number of second-level functions."""

    def partition(self, indices: Indices, parts: int) -> NDArray[np.int64]:
        """Return h0, the partition of each index."""

    def slot(self, level: int, indices: Indices, slots: int) -> NDArray[np.int64]:
        """Return h_level (h1 to hk), the slot of each index."""


@dataclass(frozen=True)
class HashFamily:
    """The seeded functions that all workers of a job share.

    Attributes:
        seeds: 32-bit, distinct; the first is that of `h0`, which alone decides partitions.
    """

    seeds: tuple[int, ...]

    def __post_init__(self) -> None:
        if not 1 <= len(self.seeds) <= MOST_REHASHES + 1:
            raise ValueError(f"there are {len(self.seeds)} seeds; there must be 1 to {MOST_REHASHES + 1}")
        if len(set(self.seeds)) < len(self.seeds):
            raise ValueError("two hash functions have the same seed")
        if not all(0 <= seed < 2**32 for seed in self.seeds):
            raise ValueError("a seed does not fit 32 bits")

    @property
    def rehashes(self) -> int:
        """k: the number of second-level functions."""
        return len(self.seeds) - 1

    def partition(self, indices: Indices, parts: int) -> NDArray[np.int64]:
        """Return h0, the partition of each index, 0 to ``parts`` - 1."""
        return self._hashed(0, indices, parts)

    def slot(self, level: int, indices: Indices, slots: int) -> NDArray[np.int64]:
        """Return h_level (1 to k), the slot of each index, 0 to ``slots`` - 1."""
        if not 1 <= level <= self.rehashes:
            raise ValueError(f"there is no h{level}, only h1 to h{self.rehashes}")
        return self._hashed(level, indices, slots)

    def checksum(self, parts: int) -> int:
        """Return 32 bits that show whether another worker has the same seeds and the same partitions of some
        indices; workers compare it before any exchange."""
        probes = np.arange(1, PROBES + 1, dtype=np.int64)
        seeds = np.array(self.seeds, dtype="<u4").tobytes()
        return zlib.crc32(self.partition(probes, parts).astype("<i4").tobytes(), zlib.crc32(seeds))

    def _hashed(self, level: int, indices: Indices, size: int) -> NDArray[np.int64]:
        if size < 1:
            raise ValueError(f"the range of the hash function is {size}; it must be at least 1")
        found = np.empty(len(indices), np.int64)
        for first in range(0, len(indices), BLOCK_KEYS):
            block = slice(first, first + BLOCK_KEYS)
            found[block] = murmur3(indices[block].astype(np.uint32), self.seeds[level]) % np.uint32(size)
        return found


def drawn_family(name: str, rehashes: int = REHASHES) -> HashFamily:
    """Derive a job's family from its name, equally on any machine.

    Seed j is the first four bytes, little-endian, of SHA-256 of "name/i", where i counts from 0 and skips
    duplicate seeds.
    """
    seeds: dict[int, None] = {}
    for number in count():
        if len(seeds) > rehashes:
            break
        digest = hashlib.sha256(f"{name}/{number}".encode()).digest()
        seeds[int.from_bytes(digest[:4], "little")] = None
    return HashFamily(tuple(seeds))
