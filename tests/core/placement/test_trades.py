"""Cycles of jobs that wait for each other's GPUs are found, broken once, and charged."""

from __future__ import annotations

import numpy as np
import pytest

from scheduling.core.placement.buddy_blocks import blocks_of
from scheduling.core.placement.occupancy import empty_occupancy, seat
from scheduling.core.placement.trades import break_trades
from tests.core.building import servers


def order_of(before: list[int], now: dict[int, list[int]], pauses: list[float], suspension_order: list[int]):
    """Return order, suspended and waits for jobs 0..n-1 that change from GPUs ``before`` to ``now``."""
    jobs = len(pauses)
    blocks = blocks_of(servers(*[1] * len(before)))
    occupancy = empty_occupancy(blocks, np.zeros(0, dtype=np.int64), jobs)
    held = [now.get(job, []) for job in range(jobs)]
    sizes = np.array([len(addresses) for addresses in held])
    flat = np.array([address for addresses in held for address in addresses], dtype=np.int64)
    seat(blocks, occupancy, np.array(sorted(now)), flat, np.concatenate(([0], np.cumsum(sizes))), sizes)
    order, suspended, waits = break_trades(
        blocks,
        occupancy,
        np.array(before),
        np.array(sorted(now)),
        np.array(pauses),
        np.array(suspension_order),
    )
    return order.tolist(), suspended.tolist(), waits.tolist()


def test_chain_is_ordered_so_that_gpus_are_free_when_needed():
    order, suspended, waits = order_of([0, 1, -1], {0: [1], 1: [2]}, [1.0, 1.0], [0, 1])
    assert order == [1, 0]
    assert suspended == [False, False]
    assert waits == [0.0, 0.0]


@pytest.mark.parametrize("suspension_order", [[0, 1], [1, 0]])
def test_first_in_suspension_order_releases_first_in_a_trade(suspension_order):
    _, suspended, waits = order_of([0, 1], {0: [1], 1: [0]}, [2.0, 3.0], suspension_order)
    first_out = suspension_order.index(0)
    assert suspended == [place == first_out for place in range(2)]
    assert waits[first_out] == [3.0, 2.0][first_out], "it also waits out the other's pause"
    assert waits[1 - first_out] == 0.0


def test_a_circle_of_three_needs_one_suspension():
    order, suspended, _ = order_of([0, 1, 2, -1], {0: [1], 1: [2], 2: [0]}, [1.0, 1.0, 1.0], [5, 3, 4])
    assert sorted(order) == [0, 1, 2]
    assert suspended == [False, True, False]


def test_a_job_behind_a_circle_is_not_suspended():
    _, suspended, _ = order_of([0, 1, 2], {0: [1], 1: [0], 2: []} | {2: [2]}, [1, 1, 1], [1, 2, 0])
    assert suspended == [True, False, False]
