"""Cost of Zen's own work for a worker: hashing, partitions, tables and bitmaps, and the planner.

    python -m benchmarks.gradients.sparse_exchange [--json OUT] [--repeat 5] [--seed 0]

Partitions of 1,000,000 indices by counting sort, against sorting the same indices, against the memory table
of Algorithm 3.2, and against plain Python (on a hundredth of them). Bitmaps of 10,000,000 elements, encoded
and decoded, against copying their values. A plan for 64 sparse tensors against one for a single one. All in
one run, on one core; times are CPU times of this process.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import numpy as np

from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from communication.zen.densification import Densification
from communication.zen.hash_bitmap import bitmap_decode, bitmap_encode
from communication.zen.hash_family import HashFamily, drawn_family
from communication.zen.hierarchical_hashing import hierarchical_hash, memory_for
from communication.zen.partitioning import partitioned
from communication.zen.plan import plan_sparse
from communication.zen.profile import SparsityProfile

INDICES, ELEMENTS, PARTS = 1_000_000, 10_000_000, 16
PLAIN_SHARE = 100
TENSORS = 64


def seconds(work: Callable[[], object], repeat: int) -> float:
    """Return the median of some runs."""
    found = []
    for _run in range(repeat):
        began = time.process_time()
        work()
        found.append(time.process_time() - began)
    return median(found)


def partitions(repeat: int, seed: int) -> dict[str, float]:
    """Return times of each way to divide the indices into partitions."""
    rng = np.random.default_rng(seed)
    indices = np.sort(rng.choice(ELEMENTS, INDICES, replace=False)).astype(np.int64) + 1
    shuffled = rng.permutation(indices)
    family = drawn_family("benchmark")
    few = indices[:: INDICES // (INDICES // PLAIN_SHARE)]
    return {
        "counting sort": seconds(lambda: partitioned(indices, PARTS, family), repeat),
        "hash table": seconds(
            lambda: hierarchical_hash(indices, PARTS, memory_for(INDICES, PARTS), family), repeat
        ),
        "sorting the indices": seconds(lambda: np.argsort(shuffled, kind="stable"), repeat),
        "plain Python": seconds(lambda: plain_partitions(few, family), 1) * INDICES / len(few),
    }


def plain_partitions(
    indices: np.ndarray[tuple[int], np.dtype[np.int64]], family: HashFamily
) -> list[list[int]]:
    """Build partitions index by index."""
    parts: list[list[int]] = [[] for _part in range(PARTS)]
    for index in indices.tolist():
        parts[_plain_murmur3(index, family.seeds[0]) % PARTS].append(index)
    return parts


def _plain_murmur3(key: int, seed: int) -> int:
    mask = 0xFFFFFFFF
    block = key * 0xCC9E2D51 & mask
    block = ((block << 15 | block >> 17) & mask) * 0x1B873593 & mask
    state = seed ^ block
    state = ((state << 13 | state >> 19) * 5 + 0xE6546B64) & mask
    state ^= 4
    state = (state ^ state >> 16) * 0x85EBCA6B & mask
    state = (state ^ state >> 13) * 0xC2B2AE35 & mask
    return state ^ state >> 16


def bitmaps(repeat: int, seed: int) -> dict[str, float]:
    """Return times to encode and decode the bitmap of a partition, and to copy its dense values."""
    rng = np.random.default_rng(seed)
    values = (rng.random(ELEMENTS) * (rng.random(ELEMENTS) < 0.1)).astype(np.float32)
    members = np.arange(1, ELEMENTS + 1, dtype=np.int32)
    bitmap = bitmap_encode(values)
    return {
        "encode": seconds(lambda: bitmap_encode(values), repeat),
        "decode": seconds(lambda: bitmap_decode(bitmap, members), repeat),
        "copy": seconds(values.copy, repeat),
    }


def plans(repeat: int) -> dict[str, float]:
    """Return times to plan a model of one sparse tensor and of many."""
    links = LinkProfile(LinkRate(1e-4, 3e9), LinkRate(1e-5, 1e11))

    def plan(tensors: int) -> None:
        names = tuple(f"table {number}" for number in range(tensors))
        model = ModelProfile("m", names, np.full(tensors, 64_000_000), np.full(tensors, 0.01))
        law = Densification(0.01, 0.7)
        profiles = [SparsityProfile(name, 64_000_000, 64, law) for name in names]
        plan_sparse("benchmark", model, profiles, PlacementShape(16, 8), links)

    return {"one": seconds(lambda: plan(1), repeat), "many": seconds(lambda: plan(TENSORS), repeat)}


def main() -> None:
    """Print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--repeat", type=int, default=5)
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    cut = partitions(chosen.repeat, chosen.seed)
    packed = bitmaps(chosen.repeat, chosen.seed)
    planned = plans(chosen.repeat)
    rows = {
        "counting sort over sorting the indices": cut["counting sort"] / cut["sorting the indices"],
        "hash table over counting sort": cut["hash table"] / cut["counting sort"],
        "plain Python over counting sort": cut["plain Python"] / cut["counting sort"],
        "counting sort over half a second, the limit": cut["counting sort"] / 0.5,
        "bitmap encoded over values copied": packed["encode"] / packed["copy"],
        "bitmap decoded over values copied": packed["decode"] / packed["copy"],
        f"plan of {TENSORS} tensors over plan of one": planned["many"] / planned["one"],
    }
    for name, ratio in rows.items():
        print(f"{name:55} {ratio:8.2f}")
    if chosen.json is not None:
        chosen.json.write_text(json.dumps(rows, indent=1) + "\n")


if __name__ == "__main__":
    main()
