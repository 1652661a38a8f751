"""Without refusals a crowd of late jobs waits; shortcuts for speed must not change the result."""

from __future__ import annotations

from dataclasses import replace
from math import inf
from random import Random

import numpy as np
import pytest

from kernels.compiling import NO
from scheduling.core.elasticflow.minimum_satisfactory_share import Terms, fill
from scheduling.core.placement.changes import changes_between
from scheduling.core.placement.repacking import Seating, repack_together
from scheduling.core.plans.timeline import EVERYTHING, PROMISES, TAKE, occupy
from scheduling.core.problem.problem import Problem, build_problem
from scheduling.core.question.arrays import Plans, new_draft, no_plans, set_plan
from scheduling.core.question.snapshot import JobSnapshot, Snapshot
from scheduling.policies import dispatching
from scheduling.policies.without_promises import contest
from simulation.baselines.against_elasticflow.edf_kernels import work_down
from simulation.baselines.against_elasticflow.elastic_kernels import fill_or_rush
from simulation.policies import policy_named
from tests.core.building import job, snapshot
from tests.policies.asking import later, slots


def crowd(seed: int) -> Snapshot:
    """A dozen jobs for each GPU, most of them late, of which some have run for a while."""
    rng = Random(seed)
    pause = rng.choice([0.0, 3.0])
    jobs = [_one_of_a_crowd(rng, f"job{number:02d}", pause) for number in range(48)]
    settings = slots(rng.choice([10.0, 60.0]))
    asked = snapshot((2, 2), *jobs[:30], settings=settings, now=30.0, next_slot_at=30.0)
    decision = policy_named("edf_elastic").replan(asked)
    going_on = [later(job_snapshot, decision, 20.0) for job_snapshot in jobs[:30]]
    unfinished = [
        replace(job_snapshot, placement=decision.placements.get(job_snapshot.id, ()))
        for job_snapshot in going_on
    ]
    unfinished = [job_snapshot for job_snapshot in unfinished if job_snapshot.remaining_iterations > 0]
    return snapshot(
        (2, 2),
        *unfinished,
        *jobs[30:],
        settings=settings,
        now=50.0,
        next_slot_at=50.0 + rng.choice([0.0, 7.0]),
    )


def _one_of_a_crowd(rng: Random, name: str, pause: float) -> JobSnapshot:
    rates = {1: rng.uniform(0.5, 2.0)}
    for level in (2, 4)[: rng.randint(0, 2)]:
        rates[level] = rates[level // 2] * rng.uniform(1.1, 1.9)
    if len(rates) > 1 and rng.random() < 0.3:
        del rates[1]
    deadline = rng.uniform(20.0, 900.0) if rng.random() < 0.75 else rng.uniform(3000.0, 9000.0)
    return job(
        name, rng.uniform(10.0, 300.0), deadline, rates, pause=pause, submitted_at=rng.uniform(0.0, 30.0)
    )


def by_the_book(problem: Problem, order: np.ndarray) -> tuple[Plans, np.ndarray]:
    """Apply the rule of `fill_or_rush` without shortcuts: fill every job over the whole timeline."""
    jobs, slots = problem.jobs, problem.slots
    timeline = problem.open_timeline()
    timeline.free[PROMISES] = timeline.free[EVERYTHING]
    plans = no_plans(jobs.work.size)
    met = np.zeros(jobs.work.size, dtype=np.bool_)
    for row in order:
        draft = new_draft(timeline.pieces + 8)
        terms = Terms(guarded=False, suffix=problem.suffix)
        written = fill(jobs, row, problem.due[row], timeline, slots, terms, draft)
        met[row] = written[0] > 0
        if not met[row]:
            written = work_down(jobs, row, timeline, 0, slots, True, draft)
        if written[0] > 0:
            plans = set_plan(plans, row, draft, *written)
            timeline = occupy(timeline, plans, row, TAKE, NO)
    return plans, met


@pytest.mark.parametrize("seed", range(12))
def test_every_late_job_gets_the_plan_that_it_has_by_the_book(seed: int) -> None:
    problem = build_problem(crowd(seed))
    rows = contest(problem).rows
    order = rows[problem.by_deadline[rows].argsort()]
    timeline = problem.open_timeline()
    timeline.free[PROMISES] = timeline.free[EVERYTHING]
    plans, met, *_ = fill_or_rush(
        problem.jobs, no_plans(problem.jobs.work.size), order, problem.due, timeline, problem.slots,
        problem.suffix,
    )  # fmt: skip
    expected, expected_met = by_the_book(problem, order)
    assert met.tolist() == expected_met.tolist()
    assert 0 < met.sum() < order.size / 2, "a crowd of late jobs"
    assert plans.length.tolist() == expected.length.tolist()
    for row in order:
        pieces = plans.length[row]
        assert plans.time[row, :pieces].tolist() == expected.time[row, :pieces].tolist()
        assert plans.gpus[row, :pieces].tolist() == expected.gpus[row, :pieces].tolist()
    assert plans.finish.tolist() == expected.finish.tolist()
    assert plans.gpu_time.tolist() == expected.gpu_time.tolist()
    assert (plans.finish[order] < inf).all()


@pytest.mark.parametrize("seed", range(12))
def test_places_are_those_that_all_jobs_together_would_get(seed: int) -> None:
    problem = build_problem(crowd(seed))
    rng = np.random.default_rng(seed)
    target_sizes = np.zeros(problem.jobs.work.size, dtype=np.int64)
    free = problem.gpus
    for row in rng.permutation(problem.count):
        size = int(problem.jobs.levels[row, 0])
        if rng.random() < 0.2 and size <= free:
            target_sizes[row] = size
            free -= size
    changes, failed = dispatching._placed(problem, target_sizes.copy())
    present = problem.present_placement
    occupancy, expected_failed = repack_together(Seating(present), target_sizes)
    expected = changes_between(present, occupancy, -problem.by_deadline)
    assert changes.changes == expected.changes
    assert changes.rows == expected.rows
    assert changes.pauses == expected.pauses
    assert changes.placements.addresses.tolist() == expected.placements.addresses.tolist()
    assert changes.placements.offsets.tolist() == expected.placements.offsets.tolist()
    assert failed.tolist() == expected_failed
    assert expected.changes
