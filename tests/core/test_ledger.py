"""The GPUs that all plans but one leave, computed from the ledger, equal those left when the other plans are
subtracted one by one."""

from __future__ import annotations

from random import Random

import numpy as np

from kernels.compiling import YES
from scheduling.core.plans.ledger import Ledger, ledger_of, left_by_others, replanned
from scheduling.core.plans.timeline import Timeline, new_timeline, occupied, take
from scheduling.core.question.arrays import Draft, Plans, no_plans, set_plan

JOBS = 9


def instant(chance: Random, closest: float) -> float:
    """Draw a time on a coarse grid, so that many coincide, or off it by ``closest``."""
    return chance.randrange(12) * 5.0 + chance.choice((0.0, 0.0, closest, -closest))


def with_random_plan(chance: Random, plans: Plans, row: int, closest: float) -> Plans:
    times = sorted(instant(chance, closest) for _ in range(chance.randint(1, 5)))
    gpus = [chance.choice((0, 1, 2, 4)) for _ in times[1:]] + [0]
    plans.reserved_until[row] = chance.choice((-np.inf, -np.inf, 5.0))
    return Plans(*set_plan(plans, row, Draft(np.array(times), np.array(gpus)), len(times), 0.0, 0.0))


def opened(chance: Random) -> Timeline:
    timeline = new_timeline(chance.choice((0.0, 2.5)), 16, 12)
    for _ in range(chance.randrange(3)):
        timeline = take(timeline, timeline.times[0], 5.0 * chance.randrange(1, 9), 1, chance.random() < 0.5)
    return timeline


def assert_same(actual: Timeline, expected: Timeline) -> None:
    assert actual.pieces == expected.pieces
    assert actual.times[: actual.pieces].tolist() == expected.times[: expected.pieces].tolist()
    assert actual.free[:, : actual.pieces].tolist() == expected.free[:, : expected.pieces].tolist()


def check_all(timeline: Timeline, ledger: Ledger, plans: Plans, rows: np.ndarray) -> int:
    sure = 0
    for row in rows:
        left, is_sure = left_by_others(timeline, ledger, row)
        sure += is_sure
        if is_sure:
            assert_same(left, occupied(timeline, plans, rows[rows != row], YES))
    return sure


def test_ledger_leaves_exactly_what_taking_other_plans_leaves() -> None:
    sure = 0
    for seed in range(150):
        chance = Random(seed)
        # Differences that always, sometimes and never count as one instant.
        closest = chance.choice((0.0, 1e-9, 4e-7, 9e-7, 1.5e-6))
        plans = no_plans(JOBS)
        for row in range(JOBS):
            plans = with_random_plan(chance, plans, row, closest)
        rows = np.array(sorted(chance.sample(range(JOBS), chance.randint(1, JOBS))))
        timeline, ledger = opened(chance), ledger_of(plans, rows)
        sure += check_all(timeline, ledger, plans, rows)
        for _ in range(3):
            row = int(chance.choice(rows.tolist()))
            plans = with_random_plan(chance, plans, row, closest)
            ledger = replanned(ledger, plans, row)
            for actual, expected in zip(ledger, ledger_of(plans, rows), strict=True):
                assert actual.tolist() == expected.tolist()
        sure += check_all(timeline, ledger, plans, rows)
    assert sure > 1000


def test_ledger_is_unsure_where_order_decides_which_instants_merge() -> None:
    plans = no_plans(3)
    for row, shift in enumerate((0.0, 0.9e-6, 1.8e-6)):
        times = np.array([0.0, 10.0 + shift, 20.0])
        plans = Plans(*set_plan(plans, row, Draft(times, np.array([1, 2, 0])), 3, 0.0, 0.0))
    _, sure = left_by_others(new_timeline(0.0, 16, 16), ledger_of(plans, np.arange(3)), -1)
    assert not sure
