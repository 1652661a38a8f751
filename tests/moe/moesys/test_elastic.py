"""Elastic plans: vectors T2, T3 and V5, the published recipe, and small cases against brute force."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from moe.moesys.choices import Mode
from moe.moesys.elastic import count_gpus, plan_elastic, plan_one_gpu_each, plan_with_quota
from moe.moesys.gangs import (
    StepCost,
    choose_gang,
    fit_step_cost,
    predict_gang,
    useful_gangs,
)
from moe.moesys.tasks import RankMemory, Task, imbalance, split_samples

TABLE_3 = [Task(512), Task(256), Task(128), Task(128)]
#: Batches of VIMER-UFO 2.0: faces, three of 576, ImageNet, 17 of 144, CIFAR-100, CIFAR-10.
UFO = [Task(batch) for batch in (1152, 576, 576, 576, 1152, *[144] * 18, 256)]
MEASURED = fit_step_cost({512: 1024 / 250.4, 128: 1024 / 591.9})


def test_t2_loads_of_one_one_and_two():
    tasks = [Task(1), Task(1), Task(2)]
    assert plan_elastic(tasks, Mode.DOWN).loads == (2, 2)
    up = plan_elastic(tasks, Mode.UP)
    assert (up.loads, up.gpus_by_task) == ((1, 1, 1, 1), (1, 1, 2))
    assert plan_one_gpu_each(tasks).bubbles == (0.5, 0.5, 0.0)


def test_t3_eight_gpus_for_four_tasks():
    plan = plan_elastic(TABLE_3, Mode.UP)
    assert (plan.gpus, plan.gpus_by_task, plan.utilisation) == (8, (4, 2, 1, 1), 1.0)
    assert plan.groups[1].ranks == (4, 5)


@pytest.mark.parametrize(
    ("budget", "quota", "gpus"),
    [
        (1, 1024, 1),
        (2, 512, 2),
        (3, 512, 2),
        (4, 256, 4),
        (5, 256, 4),
        (6, 256, 4),
        (7, 512 / 3, 7),
        (8, 128, 8),
    ],
)
def test_v5_budgets(budget, quota, gpus):
    plan = plan_elastic(TABLE_3, Mode.BUDGET, budget)
    assert plan.quota == pytest.approx(quota)
    assert plan.gpus == gpus


def test_v5_shared_and_split_tasks():
    two = plan_elastic(TABLE_3, Mode.BUDGET, 2)
    assert [share.tasks for share in two.shares] == [(0,), (1, 2, 3)]
    assert plan_elastic(TABLE_3, Mode.BUDGET, 7).gpus_by_task == (3, 2, 1, 1)
    four = plan_elastic(TABLE_3, Mode.BUDGET, 4)
    assert [share.tasks for share in four.shares] == [(0,), (0,), (1,), (2, 3)]
    assert four.utilisation == 1.0
    assert split_samples(10, 4) == (3, 3, 2, 2)


def test_v5_the_published_recipe_needs_48_gpus():
    plan = plan_elastic(UFO, Mode.UP)
    assert (len(UFO), sum(task.batch for task in UFO)) == (24, 6880)
    assert (plan.quota, plan.gpus) == (144, 48)
    assert plan.gpus_by_task[:5] == (8, 4, 4, 4, 8)
    assert plan.utilisation == pytest.approx(0.995, abs=5e-4)
    assert plan_one_gpu_each(UFO).utilisation == pytest.approx(0.249, abs=5e-4)
    # As published: two GPUs for CIFAR-100, and one for the 256 samples of CIFAR-10.
    published = [load for load in plan.loads if load == 144] + [72, 72, 256]
    published = published[: 48 - 3] + published[-3:]
    assert np.mean(published) / max(published) == pytest.approx(0.560, abs=5e-3)


def test_the_worked_admission_by_deadline():
    """T(256) = 2.517 s on four GPUs, T(128) = 1.730 s on eight."""
    slow = choose_gang(TABLE_3, MEASURED, 8, steps=100, deadline_seconds=260)
    assert slow is not None
    assert (slow.plan.gpus, slow.plan.quota, slow.plan.utilisation) == (4, 256, 1.0)
    assert slow.step_seconds == pytest.approx(2.517, abs=5e-4)
    assert slow.samples_per_second_and_gpu == pytest.approx(101.7, abs=0.05)
    fast = choose_gang(TABLE_3, MEASURED, 8, steps=100, deadline_seconds=180)
    assert fast is not None
    assert (fast.plan.gpus, fast.plan.quota) == (8, 128)
    assert fast.step_seconds == pytest.approx(1.730, abs=5e-4)
    assert choose_gang(TABLE_3, MEASURED, 8, steps=100, deadline_seconds=170) is None


def test_memory_for_one_expert_forbids_packing():
    memory = RankMemory(capacity_bytes=30, expert_bytes=20)
    plan = plan_with_quota(TABLE_3, 256, memory)
    assert plan is not None
    assert plan.gpus == 5
    assert plan_elastic(TABLE_3, Mode.BUDGET, 5, memory=memory).quota == 256


def test_without_a_deadline_samples_per_gpu_decide():
    """Two GPUs are as fast as four with one task each (MoESys)."""
    memory = RankMemory(capacity_bytes=60, expert_bytes=20)
    best = choose_gang(TABLE_3, MEASURED, 8, memory=memory)
    assert best is not None
    assert best.plan.gpus == 2
    assert best.samples_per_second == pytest.approx(250.4, abs=0.05)
    assert best.samples_per_second_and_gpu == pytest.approx(125.2, abs=0.05)
    assert [gang.plan.gpus for gang in useful_gangs(TABLE_3, MEASURED, 8)] == [1, 2, 4, 7, 8]


def test_an_error_says_how_many_gpus_memory_needs():
    memory = RankMemory(capacity_bytes=100, sample_bytes=1)
    with pytest.raises(ValueError, match=r"budget of 2 GPUs .* needs 13 GPUs"):
        plan_elastic(TABLE_3, Mode.BUDGET, 2, memory=memory)
    assert max(plan_elastic(TABLE_3, Mode.BUDGET, 13, memory=memory).loads) <= 100
    with pytest.raises(ValueError, match="any number of GPUs"):
        plan_elastic(TABLE_3, Mode.BUDGET, 2, memory=RankMemory(capacity_bytes=1, expert_bytes=2))


def test_edges_of_plans():
    assert plan_elastic([Task(7)], Mode.BUDGET, 3).loads == (3, 2, 2)
    with_idle = plan_elastic([Task(4), Task(0), Task(4)], Mode.UP)
    assert (with_idle.gpus_by_task, [group.task for group in with_idle.groups]) == ((1, 0, 1), [0, 2])
    assert plan_elastic([Task(5)], Mode.UP, quota=2).gpus == 3
    # One sample cannot be split, so more GPUs for the other task would not help.
    indivisible = plan_elastic([Task(1, cost=100), Task(10)], Mode.BUDGET, 8)
    assert (indivisible.gpus, indivisible.largest_load) == (2, 100)


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: Task(-1), "batch"),
        (lambda: Task(1, cost=0), "cost"),
        (lambda: plan_elastic([], Mode.UP), "tasks"),
        (lambda: plan_elastic([Task(0)], Mode.UP), "tasks"),
        (lambda: plan_elastic([Task(1)], Mode.BUDGET), "budget"),
        (lambda: plan_elastic([Task(1)], Mode.BUDGET, 0), "budget"),
        (lambda: plan_elastic([Task(10**9), Task(1)], Mode.UP), "quota"),
        (lambda: fit_step_cost({1.0: 1.0}), "two loads"),
    ],
)
def test_an_error_names_the_argument(make, field):
    with pytest.raises(ValueError, match=field):
        make()


LOADS = st.lists(st.integers(0, 40), min_size=1, max_size=5).filter(any)


@settings(max_examples=30)
@given(LOADS, st.integers(1, 6))
def test_no_assignment_has_a_smaller_largest_load(batches, budget):
    tasks = [Task(batch) for batch in batches]
    plan = plan_elastic(tasks, Mode.BUDGET, budget)
    assert plan.gpus <= budget
    assert plan.quota == pytest.approx(least_largest_load(tuple(batches), budget), rel=1e-6)
    # Samples are whole, so a rank has at most one more than its share.
    assert plan.largest_load <= plan.quota + 1


def least_largest_load(batches: tuple[int, ...], budget: int) -> float:
    """Return the optimum over all ways to give some tasks GPUs of their own and to pack the others."""
    loads = [batch for batch in batches if batch]
    best = float("inf")
    for alone in product(range(budget + 1), repeat=len(loads)):
        if sum(alone) > budget:
            continue
        split = [max(1.0, load / gpus) for load, gpus in zip(loads, alone, strict=True) if gpus]
        rest = [load for load, gpus in zip(loads, alone, strict=True) if not gpus]
        bins = budget - sum(alone)
        if rest and not bins:
            continue
        packed = [least_packed(rest, bins)] if rest else []
        best = min(best, max(packed + split))
    return best


def least_packed(loads: list[int], bins: int) -> float:
    """Return the smallest largest bin over all ways to fill the bins."""
    into = product(range(bins), repeat=len(loads))
    return min(np.bincount(bins_, loads, bins).max() for bins_ in into)


@settings(max_examples=30)
@given(LOADS, st.integers(1, 12), st.sampled_from(Mode))
def test_every_sample_is_trained_once_and_ranks_are_contiguous(batches, budget, mode):
    tasks = [Task(batch) for batch in batches]
    plan = plan_elastic(tasks, mode, budget)
    trained = [0] * len(tasks)
    for group in plan.groups:
        trained[group.task] += sum(group.samples)
        assert list(group.ranks) == list(range(group.ranks[0], group.ranks[0] + len(group.ranks)))
    assert trained == list(batches)
    assert 0.0 < plan.utilisation <= 1.0
    assert imbalance(plan.loads) == pytest.approx(1.0 / plan.utilisation)


@settings(max_examples=30)
@given(LOADS, st.integers(1, 11))
def test_one_gpu_more_never_makes_steps_longer(batches, budget):
    tasks = [Task(batch) for batch in batches]
    fewer, more = (plan_elastic(tasks, Mode.BUDGET, gpus) for gpus in (budget, budget + 1))
    assert more.quota <= fewer.quota


@settings(max_examples=30)
@given(
    st.lists(st.tuples(st.integers(1, 60), st.sampled_from([1.0, 2.5])), min_size=1, max_size=8),
    st.lists(st.floats(3.0, 200.0), min_size=1, max_size=6),
    st.floats(0, 5),
)
def test_counted_gpus_are_those_of_the_plans(drawn, quotas, expert_bytes):
    tasks = [Task(*fields) for fields in drawn]
    memory = RankMemory(capacity_bytes=70, expert_bytes=expert_bytes, sample_bytes=1)
    counted = count_gpus(tasks, np.array(quotas), memory)
    plans = [plan_with_quota(tasks, quota, memory) for quota in quotas]
    assert counted.tolist() == [0 if plan is None else plan.gpus for plan in plans]


def test_many_tasks_are_planned_by_grids():
    tasks = [Task(16 + 7 * number % 50) for number in range(40)]
    plan = plan_elastic(tasks, Mode.BUDGET, 24)
    assert plan.gpus <= 24
    assert plan.utilisation > 0.9
    memory = RankMemory(capacity_bytes=100, sample_bytes=1)
    with pytest.raises(ValueError, match=r"budget of 5 GPUs .* fits needs (1[5-9]|2\d) GPUs"):
        plan_elastic(tasks, Mode.BUDGET, 5, memory=memory)


@settings(max_examples=30)
@given(LOADS.filter(lambda batches: len({batch for batch in batches if batch}) > 1))
def test_balance_raises_throughput_per_gpu_if_loads_differ(batches):
    """The third trend of MoESys' elastic training."""
    tasks = [Task(batch * 12) for batch in batches if batch]
    before = predict_gang(plan_one_gpu_each(tasks), StepCost(0.0, 0.006))
    after = predict_gang(plan_elastic(tasks, Mode.UP), StepCost(0.0, 0.006))
    best = predict_gang(plan_elastic(tasks, Mode.DOWN), StepCost(0.0, 0.006))
    assert (
        max(after.samples_per_second_and_gpu, best.samples_per_second_and_gpu)
        >= before.samples_per_second_and_gpu
    )
