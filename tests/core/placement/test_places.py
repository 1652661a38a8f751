"""The free place and the whole blocks that a job gets equal those found by checking every place."""

from __future__ import annotations

from random import Random

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from kernels.compiling import YES
from scheduling.core.placement.buddy_blocks import Blocks, blocks_of
from scheduling.core.placement.occupancy import FREE, UNPLACED, Occupancy, empty_occupancy, lift
from scheduling.core.placement.placing import free_place, turn_former_into_mine
from scheduling.core.placement.repacking import _repack
from scheduling.core.placement.whole_blocks import cheapest
from tests.core.building import servers

JOBS = 12
SHAPES = ((8,), (8, 8, 8), (4, 8, 4), (6, 8), (2, 2, 4, 8, 8))


def crowded(chance: Random) -> tuple[Blocks, Occupancy, int]:
    """Return a cluster with gaps, and a job without a place: it lost its place or never had one."""
    shape = chance.choice(SHAPES)
    blocks = blocks_of(servers(*shape))
    blocked = np.array([address for address in range(sum(shape)) if chance.random() < 0.1], dtype=np.int64)
    occupancy = empty_occupancy(blocks, blocked, JOBS)
    rows = np.arange(JOBS)
    sizes = np.zeros(JOBS, dtype=np.int64)
    for _ in range(3):
        for row in range(JOBS):
            if chance.random() < 0.5:
                room = sum(shape) - blocked.size - int(sizes.sum()) + int(sizes[row])
                sizes[row] = chance.choice([0, *(size for size in (1, 2, 4, 8, 16) if size <= room)])
        occupancy.settled[:] = 0
        failed = _repack(blocks, occupancy, rows, sizes, np.zeros(JOBS, dtype=np.bool_), rows)
        sizes[failed] = 0
    job = chance.randrange(JOBS)
    if occupancy.base[job] != UNPLACED:
        lift(blocks, occupancy, job)
        turn_former_into_mine(blocks, occupancy, job, YES)
    return blocks, occupancy, job


def best_by_the_rule(blocks: Blocks, occupancy: Occupancy, size: int) -> int:
    """Return the base of the best free aligned place: the most overlap with the job's former GPUs, then the
    smallest free area, then the lowest address."""
    free = {
        address
        for address in range(blocks.block_of.size)
        if blocks.block_of[address] >= 0
        and occupancy.owner[address] == FREE
        and occupancy.former[address] == FREE
    }
    candidates = []
    for first, room in zip(blocks.base.tolist(), blocks.size.tolist(), strict=True):
        for base in range(first, first + room - size + 1, size):
            place = set(range(base, base + size))
            if place <= free:
                overlap = sum(occupancy.mine[address] != FREE for address in place)
                candidates.append((-overlap, free_area(free, first, room, base, size), base))
    return min(candidates)[2] if candidates else UNPLACED


def free_area(free: set[int], first: int, room: int, base: int, size: int) -> int:
    while 2 * size <= room:
        start = first + (base - first) // (2 * size) * 2 * size
        if not set(range(start, start + 2 * size)) <= free:
            break
        size *= 2
    return size


@given(seed=st.integers(0, 2**32), size=st.sampled_from((1, 2, 4, 8)))
def test_the_free_place_is_the_best_of_all(seed: int, size: int) -> None:
    blocks, occupancy, job = crowded(Random(seed))
    assert free_place(blocks, occupancy, job, size) == best_by_the_rule(blocks, occupancy, size)


@given(
    listed=st.lists(st.tuples(st.integers(0, 6), st.booleans(), st.sampled_from((4, 8))), max_size=30),
    most=st.integers(0, 12),
)
def test_the_cheapest_blocks_are_the_first_of_all_sorted(
    listed: list[tuple[int, bool, int]], most: int
) -> None:
    key, allowed, sizes = (np.array(column) for column in zip(*listed, strict=True)) if listed else (
        np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.bool_), np.zeros(0, dtype=np.int64)
    )  # fmt: skip
    right = sorted((key[block], block) for block in range(sizes.size) if allowed[block] and sizes[block] == 8)
    assert cheapest(sizes, allowed, key, 8, most).tolist() == sorted(block for _, block in right[:most])


def test_draws_contain_places_with_and_without_overlap() -> None:
    """Without both kinds of draws the first property would prove little."""
    overlapping, others = 0, 0
    for seed in range(300):
        blocks, occupancy, job = crowded(Random(seed))
        base = free_place(blocks, occupancy, job, 1)
        if base != UNPLACED:
            overlapping += occupancy.mine[base] != FREE
            others += occupancy.mine[base] == FREE
    assert overlapping > 50
    assert others > 50
