"""The knapsack equals the exact optimum: every choice tried, an integer program, and marginal greedy where it
is optimal."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
from scipy.sparse import coo_array, vstack  # type: ignore[import-untyped]

from scheduling.core.lyra.knapsack import NO_ITEM, ItemGroups, choose_items
from tests.core.lyra.test_knapsack import groups_of, taken_in

VALUES = st.one_of(st.integers(0, 6).map(float), st.floats(0.01, 100.0))


@st.composite
def small_instances(draw):
    """At most five groups of at most six items; weights and values often tie."""
    items = []
    for _ in range(draw(st.integers(1, 5))):
        weights = sorted(draw(st.sets(st.integers(1, 12), max_size=6)))
        items.append([(weight, draw(VALUES)) for weight in weights])
    present = [draw(st.integers(0, len(group))) for group in items]
    return items, present, draw(st.integers(0, 20))


def best_by_trying(items, capacity):
    """The greatest value over all choices."""
    best = 0.0
    for choice in product(*([(0, 0.0), *group] for group in items)):
        if sum(weight for weight, _ in choice) <= capacity:
            best = max(best, sum(value for _, value in choice))
    return best


@given(small_instances())
def test_no_choice_is_better(instance):
    items, present, capacity = instance
    groups = groups_of(items, present)
    choice = choose_items(groups, capacity)
    best = best_by_trying(items, capacity)
    assert choice.weight <= capacity
    assert choice.value == pytest.approx(best, rel=1e-9, abs=1e-9)
    again = choose_items(groups._replace(present=choice.chosen), capacity)
    assert taken_in(again, groups) == taken_in(choice, groups), "what was chosen is kept"
    greedy = choose_items(groups, capacity, work_limit=0)
    assert greedy.weight <= capacity
    assert greedy.value <= best * (1 + 1e-9) + 1e-9


def random_groups(rng, groups, most_items):
    """Jobs with workers of several sizes and rates that grow ever less."""
    items = []
    for _ in range(groups):
        gpus, base = int(rng.choice([1, 2, 4, 8])), int(rng.integers(1, 5))
        steps = np.arange(1, int(rng.integers(1, most_items + 1)) + 1)
        work = rng.lognormal(10, 1.5)
        scaling = rng.uniform(0.6, 1.0)
        values = work / base**scaling - work / (base + steps) ** scaling
        items.append([(int(gpus * step), float(value)) for step, value in zip(steps, values, strict=True)])
    return groups_of(items)


def program_value(groups: ItemGroups, capacity: int) -> float:
    """The optimum of the same question as an integer program."""
    items = groups.weight.size
    group_of = np.repeat(np.arange(groups.present.size), np.diff(groups.offsets))
    one_each = coo_array((np.ones(items), (group_of, np.arange(items))), shape=(groups.present.size, items))
    rows = vstack([one_each, coo_array(groups.weight[None, :].astype(float))]).tocsr()
    most = np.concatenate((np.ones(groups.present.size), [capacity]))
    answer = milp(
        -groups.value / groups.value.max(),
        constraints=LinearConstraint(rows, -np.inf, most),
        integrality=np.ones(items),
        bounds=Bounds(0, 1),
        options={"mip_rel_gap": 0.0},
    )
    assert answer.success
    return float(groups.value[answer.x > 0.5].sum())


@pytest.mark.parametrize("seed", range(8))
def test_larger_instances_equal_an_integer_program(seed):
    rng = np.random.default_rng(seed)
    groups = random_groups(rng, int(rng.integers(10, 40)), 9)
    capacity = int(groups.weight.sum() // rng.integers(10, 30))
    choice = choose_items(groups, capacity)
    assert choice.exact
    assert choice.value == pytest.approx(program_value(groups, capacity), rel=1e-6)


def test_memory_saving_blocks_of_groups_find_the_same_optimum():
    rng = np.random.default_rng(5)
    groups = random_groups(rng, 1200, 4)
    capacity = int(groups.weight.sum() // 3)
    choice = choose_items(groups, capacity)
    assert groups.present.size * (capacity + 1) > 4_000_000, "more totals than are kept at once"
    assert choice.exact
    assert choice.weight <= capacity
    assert choice.value == pytest.approx(program_value(groups, capacity), rel=1e-6)


@given(
    st.lists(st.tuples(st.integers(1, 4), st.integers(1, 6), st.floats(1, 1000)), min_size=1, max_size=8),
    st.integers(0, 30),
)
def test_marginal_greedy_is_optimal_for_linear_single_gpu_jobs(jobs, capacity):
    items, gains = [], []
    for base, steps, work in jobs:
        values = [work / base - work / (base + step) for step in range(1, steps + 1)]
        items.append(list(zip(range(1, steps + 1), values, strict=True)))
        gains += np.diff([0.0, *values]).tolist()
    groups = groups_of(items)
    choice = choose_items(groups, capacity)
    assert choice.value == pytest.approx(sum(sorted(gains, reverse=True)[:capacity]), rel=1e-9)
    assert np.count_nonzero(choice.chosen != NO_ITEM) <= len(jobs)
