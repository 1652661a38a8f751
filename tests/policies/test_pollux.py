"""Pollux: the sizes with the best power mean of speed-ups."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given as drawn
from hypothesis import strategies as st

from simulation.baselines.against_elasticflow.pollux_kernels import cheapest_exactly, cheapest_greedily
from tests.core.building import sizes, snapshot
from tests.policies.asking import asking, go_on, replanned, slots

MINUTE = slots(60.0)
POOR = {1: 1.0, 2: 1.1, 4: 1.2, 8: 1.3}

costs = st.lists(st.lists(st.floats(0.01, 100), min_size=3, max_size=3), min_size=1, max_size=4)


def table(rows):
    """Costs that fall with size, and the sizes 0, 1 and 2."""
    cost = np.sort(np.array(rows), axis=1)[:, ::-1].copy()
    return cost, np.tile(np.array([0, 1, 2]), (len(rows), 1))


def total(cost, chosen):
    return float(cost[np.arange(len(chosen)), chosen].sum())


@drawn(costs, st.integers(0, 6))
def test_the_division_is_the_cheapest_of_all(rows, gpus):
    cost, size = table(rows)
    chosen = cheapest_exactly(cost, size, gpus)
    assert int(size[np.arange(len(rows)), chosen].sum()) <= gpus
    best = min(
        sum(cost[row, column] for row, column in enumerate(way))
        for way in product(range(3), repeat=len(rows))
        if sum(size[row, column] for row, column in enumerate(way)) <= gpus
    )
    assert total(cost, chosen) == pytest.approx(best)


@drawn(costs, st.integers(0, 6))
def test_step_by_step_fits_too_and_is_never_better(rows, gpus):
    cost, size = table(rows)
    chosen = cheapest_greedily(cost, size, gpus)
    assert int(size[np.arange(len(rows)), chosen].sum()) <= gpus
    assert total(cost, chosen) >= total(cost, cheapest_exactly(cost, size, gpus)) - 1e-9
    if gpus >= 2 * len(rows):
        assert total(cost, chosen) == pytest.approx(cost[:, 2].sum())


def run(count: int, *jobs, gpus: int = 8):
    asked = snapshot(gpus, *jobs, settings=MINUTE)
    decisions = []
    for _ in range(count):
        decision, asked = go_on("pollux", asked, 60.0)
        decisions.append(decision)
    return decisions


def test_a_job_starts_small_and_may_double_every_time():
    grown = [sizes(decision)["a"] for decision in run(6, asking("a", work=1e6))]
    assert grown[0] == 1
    assert max(grown) == 8
    assert all(after <= 2 * before for before, after in zip(grown, grown[1:], strict=False))


def test_gpus_go_where_they_raise_goodput():
    last = run(8, asking("scales", work=1e6), asking("does-not", work=1e6, curve=POOR))[-1]
    assert sizes(last)["scales"] > sizes(last)["does-not"] >= 1


def test_every_job_gets_one_gpu_before_any_gets_more():
    last = run(4, *(asking(name, work=1e6) for name in "abcd"), gpus=4)[-1]
    assert sizes(last) == dict.fromkeys("abcd", 1)


def test_job_with_many_restarts_is_not_resized():
    calm = asking(
        "calm", newcomer=False, gpus_now=4, placement=(0, 1, 2, 3), memory=(0.0, 4.0), submitted_at=-600.0
    )
    often = asking(
        "often", newcomer=False, gpus_now=4, placement=(0, 1, 2, 3), memory=(20.0, 4.0), submitted_at=-600.0
    )
    assert sizes(replanned("pollux", snapshot(8, calm, settings=MINUTE))) == {"calm": 8}
    assert sizes(replanned("pollux", snapshot(8, often, settings=MINUTE))) == {"often": 4}


def test_the_answer_names_the_work_of_the_search():
    decision = replanned("pollux", snapshot(8, asking("a"), asking("b"), settings=MINUTE))
    assert decision.notes == ("2 jobs x 8 GPUs divided exactly",)
    assert decision.next_wake_at == 60.0
