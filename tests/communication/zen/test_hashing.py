"""Hash functions, hierarchical hashing and the counting sort: vectors Z3, Z5 and Z7, and invariants."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from communication.zen import hash_family
from communication.zen.hash_family import HashFamily, drawn_family, murmur3
from communication.zen.hierarchical_hashing import MemorySize, hierarchical_hash, memory_for
from communication.zen.indices import nonzero_indices
from communication.zen.partitioning import partition_table, partitioned
from communication.zen.strawmen import cut_parts, cut_points, expected_loss, one_hash
from tests.communication.zen.examples import ELEMENTS, INDICES, HandHashes, gradients

index_sets = st.lists(st.integers(1, 5000), unique=True, max_size=300).map(lambda found: np.array(found, int))


def keys(*values: int) -> np.ndarray:
    return np.array(values, np.uint32)


@pytest.mark.parametrize(
    ("key", "seed", "expected"),
    [(0, 0, 0x2362F9DE), (0x87654321, 0, 0xF55B516B), (0x87654321, 0x5082EDEE, 0x2362F9DE)],
)
def test_published_values_of_murmur3(key, seed, expected):
    assert int(murmur3(keys(key), seed)[0]) == expected


def test_murmur3_of_the_first_keys():
    assert murmur3(keys(*range(1, 9)), 0).tolist() == [
        4226891818, 1085422463, 847579505, 1889779975, 236698494, 3319477102, 1343918321, 2472494321,
    ]  # fmt: skip
    parts = HashFamily((0,)).partition(np.arange(1, 16), 3)
    assert parts.tolist() == [1, 2, 2, 1, 0, 1, 2, 2, 2, 2, 1, 0, 0, 2, 0]


@pytest.mark.parametrize("seed", [0, 1, 0x9747B28C, 2**32 - 1])
def test_int64_tensors_give_the_same_bits(seed):
    """A GPU computes in int64 with a mask what workers on CPUs compute in uint32."""
    indices = np.random.default_rng(seed).integers(1, 2**31 - 1, 2000)
    mask = 0xFFFFFFFF

    def rotated(words: torch.Tensor, bits: int) -> torch.Tensor:
        return ((words << bits) & mask) | (words >> (32 - bits))

    block = torch.from_numpy(indices) * hash_family.BLOCK_FIRST & mask
    block = rotated(block, hash_family.BLOCK_ROTATION) * hash_family.BLOCK_SECOND & mask
    state = rotated(block ^ seed, hash_family.STATE_ROTATION)
    state = (state * hash_family.STATE_FACTOR + hash_family.STATE_ADDEND) & mask
    state = state ^ hash_family.KEY_BYTES
    state = (state ^ (state >> 16)) * hash_family.FINAL_FIRST & mask
    state = (state ^ (state >> 13)) * hash_family.FINAL_SECOND & mask
    state = state ^ (state >> 16)
    assert state.tolist() == murmur3(indices.astype(np.uint32), seed).tolist()


def test_a_hash_family_follows_its_name_and_has_a_checksum():
    family = drawn_family("job 7")
    assert family.seeds == drawn_family("job 7").seeds
    assert len(set(family.seeds)) == 4
    # The beginning of the SHA-256 of "job 7/0", little-endian.
    assert drawn_family("job 7", 0).seeds == family.seeds[:1]
    other = HashFamily((family.seeds[0] ^ 1, *family.seeds[1:]))
    second_level = HashFamily((*family.seeds[:3], family.seeds[3] ^ 1))
    sums = {each.checksum(8) for each in (family, other, second_level)} | {family.checksum(4)}
    assert len(sums) == 4


def test_seeds_are_frozen_in_the_protocol():
    """Workers that draw other seeds cannot work with these."""
    assert drawn_family("x").seeds == (3340953092, 2418619502, 3209428366, 3690603951)


@pytest.mark.parametrize("seeds", [(), (1, 1), (-1,), (2**32,), tuple(range(20))])
def test_wrong_seeds_are_refused(seeds):
    with pytest.raises(ValueError, match="seed"):
        HashFamily(seeds)


@pytest.mark.parametrize(
    ("other", "rows", "counters", "placed"),
    [
        (False, [[13, 5, 2, 7, 10, 0, 0], [8, 0, 6, 3, 0, 0, 0], [9, 1, 0, 0, 0, 0, 0]], [5, 4, 4], (7, 2)),
        (True, None, [6, 4, 4], (7, 1)),
    ],
)
def test_hierarchical_hashing_by_hand(other, rows, counters, placed):
    table = hierarchical_hash(
        np.array([1, 2, 3, 5, 6, 7, 8, 9, 10, 13]), 3, MemorySize(4, 3), HandHashes(other)
    )
    assert table.counters.tolist() == counters
    assert table.placed == placed
    assert table.grown == 0
    if rows is not None:
        assert table.slots.tolist() == rows
    else:
        assert table.slots[0, 4:].tolist() == [10, 13, 0]


def test_partitions_of_the_example():
    table = partition_table(ELEMENTS, 3, HandHashes())
    assert [member.tolist() for member in table.members] == [
        [2, 5, 7, 10, 13], [3, 6, 8, 11, 14], [1, 4, 9, 12, 15],
    ]  # fmt: skip
    for members in table.members:
        assert table.position[members - 1].tolist() == list(range(len(members)))


@given(index_sets, st.integers(1, 20), st.integers(0, 5), st.integers(1, 40), st.integers(0, 4))
def test_no_index_is_lost_and_the_table_agrees_with_the_sort(indices, parts, rehashes, parallel, serial):
    family = drawn_family("property", rehashes)
    table = hierarchical_hash(indices, parts, MemorySize(parallel, serial), family)
    partitions = partitioned(np.sort(indices), parts, family)
    sorted_parts = partitions.split(np.sort(indices))
    for row, expected in zip(table.partitions(), sorted_parts, strict=True):
        assert np.sort(row).tolist() == expected.tolist()
    everything = np.concatenate(table.partitions())
    assert np.sort(everything).tolist() == np.sort(indices).tolist(), "each in exactly one partition, once"
    assert sum(table.placed) + table.serial == len(indices)
    assert (table.counters - parallel).sum() == table.serial
    most = int((table.counters - parallel).max())
    assert table.grown == max(0, most - serial), "memory grows by what is missing, and by no more"


def test_without_second_level_everything_is_serial():
    indices = np.arange(1, 101)
    table = hierarchical_hash(indices, 4, MemorySize(1, 0), HashFamily((7,)))
    assert table.serial == 100
    assert table.grown == int((table.counters - 1).max()) > 0
    assert sum(len(row) for row in table.partitions()) == 100


@given(index_sets, index_sets, st.integers(1, 12))
def test_an_indexs_partition_does_not_depend_on_other_indices(one, other, parts):
    family = drawn_family("two workers")
    both = np.intersect1d(one, other)

    def part_of(indices: np.ndarray) -> dict[int, int]:
        table = hierarchical_hash(indices, parts, memory_for(len(indices), parts), family)
        return {int(index): part for part, row in enumerate(table.partitions()) for index in row}

    mine, theirs = part_of(one), part_of(other)
    assert all(mine[int(index)] == theirs[int(index)] for index in both)


def test_remaining_collisions_fall_with_rounds_and_memory():
    """In lockstep rounds at a load of one half, three functions leave 4.2 %, four 2.1 %."""
    indices = np.sort(np.random.default_rng(0).choice(10**7, 10**5, replace=False)) + 1
    memory = memory_for(len(indices), 4)
    assert memory.parallel * 4 == 2 * len(indices)
    left = [
        hierarchical_hash(indices, 4, memory, drawn_family("rounds", k)).serial / len(indices)
        for k in (1, 2, 3, 4)
    ]
    assert left == sorted(left, reverse=True)
    assert left[2] == pytest.approx(0.042, abs=0.003)
    assert left[3] == pytest.approx(0.021, abs=0.003)
    wide = hierarchical_hash(indices, 4, memory_for(len(indices), 4, 4.0), drawn_family("rounds", 3))
    assert wide.serial / len(indices) < left[2] / 2


@pytest.mark.parametrize(
    ("nonzeros", "parts", "expected"), [(100, 4, (50, 5)), (0, 4, (1, 1)), (7, 3, (5, 1))]
)
def test_memory_is_twice_the_nonzeros_over_all_partitions(nonzeros, parts, expected):
    memory = memory_for(nonzeros, parts)
    assert (memory.parallel, memory.serial) == expected


@pytest.mark.parametrize(("load", "loss"), [(0.2, 9.37), (0.1, 4.84), (0.05, 2.46), (0.025, 1.24)])
def test_the_strawman_loses_colliding_indices(load, loss):
    assert 100 * expected_loss(load) == pytest.approx(loss, abs=0.005)
    indices = np.sort(np.random.default_rng(1).choice(10**7, 40_000, replace=False)) + 1
    stored = one_hash(indices, 4, round(len(indices) / load / 4), drawn_family("strawman", 0))
    assert 100 * (1 - sum(map(len, stored)) / len(indices)) == pytest.approx(loss, abs=0.5)


def test_cut_points_balance_only_the_indices_they_were_made_from():
    rng = np.random.default_rng(3)
    first = np.unique((rng.pareto(1.0, 4000) * 100).astype(int)) + 1
    cuts = cut_points(first, 8)
    counts = np.bincount(cut_parts(first, cuts), minlength=8)
    assert counts.max() - counts.min() <= 1
    later = np.unique((rng.pareto(0.7, 4000) * 100).astype(int)) + 1
    moved = np.bincount(cut_parts(later, cuts), minlength=8)
    assert 8 * moved.max() / moved.sum() > 1.2


def test_indices_of_the_example_are_found_in_their_gradients():
    for indices, gradient in zip(INDICES, gradients(), strict=True):
        assert nonzero_indices(gradient).tolist() == indices.tolist()
    odd = np.array([0.0, -0.0, np.nan, np.inf, 1e-45], np.float32)
    assert nonzero_indices(odd).tolist() == [3, 4, 5], "negative zero is zero, NaN and denormals are not"


@pytest.mark.parametrize("parts", [0, 2**15 + 1])
def test_absurd_numbers_of_partitions_are_refused(parts):
    with pytest.raises(ValueError, match="partitions"):
        partitioned(np.arange(1, 5), parts, HashFamily((1,)))


@pytest.mark.parametrize("parts", [128, 1000, 2**15])
def test_indices_are_found_in_any_of_many_partitions(parts):
    indices = np.arange(1, 5001)
    family = drawn_family("many")
    partitions = partitioned(indices, parts, family)
    assert (
        partitions.counts.tolist() == np.bincount(family.partition(indices, parts), minlength=parts).tolist()
    )
    assert np.all(np.diff(family.partition(indices[partitions.order], parts)) >= 0)


def test_fewer_elements_than_servers_leave_some_without():
    table = partition_table(3, 8, drawn_family("few"))
    assert sorted(np.concatenate(table.members).tolist()) == [1, 2, 3]
    assert sum(len(member) == 0 for member in table.members) >= 5
