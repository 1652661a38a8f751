"""Numbers of workers that hold a model with experts, and what binds."""

from __future__ import annotations

from math import inf

import pytest

from moe.planning.memory import (
    ExpertLayer,
    Memory,
    ModelSizes,
    WorkerMemory,
    bytes_for_packing,
    fewest_workers,
    find_binding,
)

SIZES = ModelSizes(parameter_bytes=68, dense_state_bytes=16, layers=(ExpertLayer(8, 20), ExpertLayer(4, 24)))


@pytest.mark.parametrize(("workers", "needed"), [(1, 272), (2, 144), (3, 124), (4, 80), (8, 60), (16, 60)])
def test_the_fullest_worker_has_its_part_of_each_layer(workers: int, needed: int) -> None:
    assert SIZES.needed_bytes(Memory.DEVICE, workers) == needed


@pytest.mark.parametrize(("workers", "packing", "size"), [(8, 1, 44), (8, 2, 64), (8, 4, 128), (2, 2, 256)])
def test_packed_experts_take_more(workers: int, packing: int, size: int) -> None:
    assert SIZES.expert_bytes(workers, packing) == size


@pytest.mark.parametrize(
    ("workers", "left", "allowed"),
    [(8, 19, None), (8, 20, 64), (8, 200, 244), (2, 127, None), (3, 999, None)],
)
def test_experts_are_packed_within_the_memory_left(workers: int, left: int, allowed: int | None) -> None:
    assert bytes_for_packing(SIZES, workers, left) == allowed


@pytest.mark.parametrize(
    ("device", "host", "fewest"),
    [(272, inf, 1), (271, inf, 2), (80, inf, 4), (79, inf, 8), (60, 68, 8), (59, inf, None), (inf, 67, None)],
)
def test_the_fewest_workers_are_those_whose_shares_suffice(
    device: float, host: float, fewest: int | None
) -> None:
    assert fewest_workers(SIZES, WorkerMemory(device, host)) == fewest


def test_the_shortest_memory_binds() -> None:
    assert find_binding(SIZES, WorkerMemory(100, 60), workers=1) is Memory.DEVICE
    assert find_binding(SIZES, WorkerMemory(250, 30), workers=1) is Memory.HOST
    assert find_binding(SIZES, WorkerMemory(272, 68), workers=1) is None


def test_states_of_emulated_gpus_are_in_host_memory() -> None:
    emulated = ModelSizes(68, 16, SIZES.layers, on_host=True)
    assert emulated.needed_bytes(Memory.HOST, 2) == 144
    assert fewest_workers(emulated, WorkerMemory(inf, 70)) == 8


def test_a_model_without_experts_fits_on_one_worker_or_none() -> None:
    dense = ModelSizes(50, 100, ())
    assert fewest_workers(dense, WorkerMemory(100, inf)) == 1
    assert fewest_workers(dense, WorkerMemory(99, inf)) is None


TIERED = ModelSizes(
    parameter_bytes=68,
    dense_state_bytes=16,
    layers=tuple(ExpertLayer(4, 20, weight_bytes=5, is_tiered=True) for _ in range(3)),
)


@pytest.mark.parametrize(
    ("workers", "needed"),
    [
        # Weights and gradients of one expert beside the dense states; two layers of states and all gradients;
        # all states without gradients.
        (1, {Memory.DEVICE: 16 + 10, Memory.HOST: 8 * 15 + 12 * 5, Memory.DISK: 12 * 15}),
        (4, {Memory.DEVICE: 16 + 10, Memory.HOST: 68, Memory.DISK: 3 * 15}),
    ],
)
def test_states_in_tiers_take_host_memory_and_disk(workers: int, needed: dict[Memory, int]) -> None:
    assert {memory: TIERED.needed_bytes(memory, workers) for memory in Memory} == needed


def test_each_tier_may_bind() -> None:
    assert fewest_workers(TIERED.in_tiers(False), WorkerMemory(76, inf)) == 4
    assert fewest_workers(TIERED, WorkerMemory(76, inf, 180)) == 1
    for share in (WorkerMemory(25, inf), WorkerMemory(26, 67), WorkerMemory(26, 180, 44)):
        assert fewest_workers(TIERED, share) is None
    assert find_binding(TIERED, WorkerMemory(26, 180, 179), 1) is Memory.DISK
    assert fewest_workers(TIERED, WorkerMemory(26, 180, 179)) == 2


def test_host_memory_of_emulated_gpus_has_no_copy_of_an_expert() -> None:
    emulated = ModelSizes(1, 16, TIERED.layers, on_host=True)
    assert emulated.needed_bytes(Memory.HOST, 1) == 16 + 8 * 15 + 12 * 5
