"""Growth beside plans that change within a slot, as stored plans do after slot boundaries have moved."""

from __future__ import annotations

import numpy as np

from kernels.compiling import YES
from scheduling.core.elasticflow.elastic_allocation import Growing, grant_leftover
from scheduling.core.elasticflow.first_growth import GrowthRules
from scheduling.core.elasticflow.growth_experience import unknown_seconds
from scheduling.core.plans.stored_plans import stored_plans_keep
from scheduling.core.plans.timeline import Timeline, occupy_all
from scheduling.core.problem.problem import Problem, build_problem
from scheduling.core.question.arrays import Plans, copy_plans
from scheduling.core.question.snapshot import (
    JobSnapshot,
    PlannerSettings,
    ScalingCurve,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
    StoredPlan,
)
from scheduling.core.together.growth import grow_by_knapsack

SLOT = 10.0
GPUS = 6
LINEAR = ScalingCurve(np.array([1, 2]), np.array([1.0, 2.0]), np.zeros(2))
CONCAVE = ScalingCurve(np.array([2, 4]), np.array([1.9, 3.5]), np.zeros(2))


def job(
    name: str, iterations: float, curve: ScalingCurve, placement: tuple[int, ...], *plan: tuple[float, int]
) -> JobSnapshot:
    """Return a promised job with a stored plan of these (end, GPUs) pieces, which ends at its deadline."""
    ends = np.array([end for end, _ in plan])
    stored = StoredPlan(
        np.concatenate(([0.0], ends[:-1])), ends, np.array([gpus for _, gpus in plan]), float(ends[-1])
    )
    return JobSnapshot(
        name, ServiceClass.SLO, 0.0, float(ends[-1]), iterations, curve, promised=True,
        gpus_now=len(placement),
        placement=placement, stored_plan=stored,
    )  # fmt: skip


def problem() -> Problem:
    """Return two jobs that release their GPU after 5 s and a third whose plan uses both from then on."""
    jobs = (
        job("growing", 44.0, CONCAVE, (0, 1), (5.0, 2), (15.0, 4)),
        job("one", 30.0, LINEAR, (4,), (5.0, 1), (40.0, 0), (80.0, 1)),
        job("two", 30.0, LINEAR, (5,), (5.0, 1), (40.0, 0), (80.0, 1)),
    )
    servers = (ServerSnapshot("a", 4), ServerSnapshot("b", 2))
    return build_problem(Snapshot(0.0, 0.0, servers, jobs, settings=PlannerSettings(slot_seconds=SLOT)))


def present_plans(question: Problem) -> Plans:
    """Return the stored plans with their ends and GPU time."""
    plans = copy_plans(question.stored)
    late, too_many = stored_plans_keep(
        question.jobs, plans, np.arange(3), 3, question.due, question.open_timeline()
    )
    assert not late.size
    assert not too_many
    return plans


def held_at(plans: Plans, at: float) -> int:
    """Return the GPUs that all plans hold at a time."""
    last = [int(np.searchsorted(plans.time[row, : plans.length[row]], at, "right")) - 1 for row in range(3)]
    return sum(int(plans.gpus[row, piece]) for row, piece in enumerate(last))


def free_beside(question: Problem, plans: Plans) -> Timeline:
    """Return the GPUs that the plans leave free."""
    return occupy_all(question.open_timeline(), plans, np.arange(3), YES)


def test_no_more_is_granted_than_is_free_through_the_whole_slot() -> None:
    question = problem()
    plans = present_plans(question)
    rows, may_grow = np.arange(3), np.ones(3, dtype=np.bool_)
    growing = Growing(rows, may_grow, question.due, question.by_deadline, np.zeros(3, dtype=np.int64))
    rules = GrowthRules(question.slots, False, 0.0, unknown_seconds(question))
    after, granted = grant_leftover(
        question.jobs, plans, growing, free_beside(question, plans), rules, 1 << 40
    )
    assert granted
    for at in (0.0, 5.0, 9.9):
        assert held_at(after, at) <= GPUS, f"after {at} s"


def test_no_more_is_grown_by_the_knapsack_either() -> None:
    question = problem()
    plans = present_plans(question)
    rules = GrowthRules(question.slots, False, 0.0, unknown_seconds(question), 1.0)
    after, _, _ = grow_by_knapsack(
        question.jobs, plans, np.arange(3), np.ones(3, dtype=np.bool_), question.due,
        free_beside(question, plans), rules, 100,
    )  # fmt: skip
    for at in (0.0, 5.0, 9.9):
        assert held_at(after, at) <= GPUS, f"after {at} s"
