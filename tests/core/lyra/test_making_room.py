"""Open newcomers under `punctual`: Algorithm 1 decides first, and making room only adds promises."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest

from scheduling.core.elasticflow.admission import Admission
from scheduling.core.elasticflow.expected_demand import ExpectedDemand
from scheduling.core.elasticflow.making_room import room_made
from scheduling.core.elasticflow.pause_budget import PauseBudget
from scheduling.core.elasticflow.search_limits import SearchLimits
from scheduling.core.placement.repacking import Seating
from scheduling.core.problem.problem import build_problem
from scheduling.core.question.decision import ReasonCode
from scheduling.core.question.snapshot import JobSnapshot, Snapshot
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.run import Simulation
from simulation.policies import policy_named
from simulation.workloads.catalogue import load_workload, reference_gpu_type
from tests.core.building import C3, UNIT_SLOTS, job, snapshot, verdicts
from tests.core.small_instances import LOADS, one_slot_later, random_snapshot

PUNCTUAL, ELASTICFLOW = policy_named("punctual"), policy_named("elasticflow")
NOW = 1000.0
NO_ROOM_FOR_ANYBODY = tuple(ExpectedDemand().noted(0.0, 0, 1e-6, 20.0).remembered().tolist())
"""What is known where a typical newcomer needs next to nothing: any room costs too much."""


def after_jobs_of(*gpu_seconds: float) -> ExpectedDemand:
    demand = ExpectedDemand()
    for number, needed in enumerate(gpu_seconds):
        demand = demand.noted(float(number), 0, needed, 20.0)
    return demand


def squeezing(demand: ExpectedDemand, **facts) -> Snapshot:
    """X is promised both GPUs for all the time; Y fits where X is planned anew, to begin on one (the paper's
    rule refuses Y)."""
    x = job("X", 2.5, NOW + 2.0, C3, submitted_at=NOW - 1.0)
    y = job("Y", 1.0, NOW + 2.0, C3, submitted_at=NOW, **facts)
    learnt = tuple(demand.remembered().tolist())
    return snapshot(2, x, y, now=NOW, settings=UNIT_SLOTS, memory=learnt)


def test_room_is_made_for_a_newcomer_that_needs_no_more_than_most():
    assert verdicts(ELASTICFLOW.replan(squeezing(ExpectedDemand()))) == {"X": True, "Y": False}
    assert verdicts(PUNCTUAL.replan(squeezing(ExpectedDemand()))) == {"X": True, "Y": True}
    assert verdicts(PUNCTUAL.replan(squeezing(after_jobs_of(0.1, 3.0, 2.5)))) == {"X": True, "Y": True}


def test_refusal_shows_the_cost_of_making_room():
    decision = PUNCTUAL.replan(squeezing(after_jobs_of(0.5, 0.5, 0.5, 0.5, 90.0)))
    assert verdicts(decision) == {"X": True, "Y": False}
    refusal = decision.verdicts[1]
    assert refusal.reason_code is ReasonCode.CAPACITY
    found = re.search(
        r"making room would take ([\d.e-]+) GPU hours, and half of the jobs submitted of late need at most "
        r"([\d.e-]+) GPU hours",
        refusal.reason,
    )
    assert found is not None
    assert float(found[1]) == pytest.approx(1.0 / 3600.0, rel=0.01)
    assert float(found[2]) == pytest.approx(0.5 / 3600.0, rel=0.2)  # sizes are learnt in steps


def test_half_of_the_submissions_need_at_most_the_typical_need():
    assert after_jobs_of().typical() == np.inf
    assert after_jobs_of(1.0, 1.0, 1.0, 500.0, 500.0).typical() == pytest.approx(1.0, rel=0.2)
    assert after_jobs_of(1.0, 1.0, 500.0, 500.0, 500.0).typical() == pytest.approx(500.0, rel=0.2)


def admission_of(asked: Snapshot) -> tuple[Admission, int]:
    problem = build_problem(asked)
    budget = PauseBudget(problem, Seating(problem.present_placement))
    return Admission(problem, budget, search=SearchLimits()), problem.newcomers[0]


def states_with_newcomers(seeds: range) -> list[Snapshot]:
    """Return states that `punctual` reached, each with one newcomer."""
    states = []
    for seed in seeds:
        asked = random_snapshot(seed, LOADS["loaded"], pause=0.1 if seed % 2 else 0.0)
        early = replace(asked, jobs=asked.jobs[: len(asked.jobs) // 2])
        later = one_slot_later(early, PUNCTUAL.replan(early))
        states += [replace(later, jobs=(*later.jobs, one)) for one in asked.jobs[len(early.jobs) :]]
    return states


def test_every_job_that_algorithm_1_promises_is_promised():
    """The state is the same, and a typical newcomer may need very little."""
    promised = refused = 0
    for state in states_with_newcomers(range(24)):
        asked = replace(state, memory=NO_ROOM_FOR_ANYBODY)
        (published,) = ELASTICFLOW.admit(asked).verdicts
        (verdict,) = PUNCTUAL.admit(asked).verdicts
        assert verdict.promised == published.promised
        assert PUNCTUAL.admit(state).verdicts[0].promised or not published.promised
        promised += published.promised
        refused += not published.promised
    assert promised > 10
    assert refused > 5


def test_room_that_is_made_is_made_wherever_more_is_typical():
    made = 0
    for state in states_with_newcomers(range(24)):
        if ELASTICFLOW.admit(state).verdicts[0].promised:
            continue
        admission, row = admission_of(state)
        answers = [room_made(admission, row, SearchLimits(), most)[0] for most in (1e-9, 0.5, 1.0, 2.0, 1e9)]
        found = [plans is not None for plans in answers]
        assert found == sorted(found)
        made += found[-1]
    assert made > 0


def four_large(busy: float) -> tuple[JobSnapshot, ...]:
    """Four promises on two GPUs each, for the share ``busy`` of their time."""
    return tuple(
        job(f"large{number}", busy * 1.6 * window, NOW + window, {1: 1.0, 2: 1.6}, submitted_at=NOW - 1.0)
        for number, window in enumerate((100.0, 120.0, 140.0, 160.0))
    )


@pytest.mark.parametrize(("busy", "admitted"), [(0.85, True), (1.0, False)])
def test_small_job_beside_four_large_promises_is_decided_as_published(busy, admitted):
    """Four promises hold all eight GPUs."""
    before = snapshot(8, *four_large(busy), now=NOW, settings=UNIT_SLOTS, memory=NO_ROOM_FOR_ANYBODY)
    decision = PUNCTUAL.replan(before)
    assert all(verdicts(decision).values())
    running = tuple(
        replace(
            one, newcomer=False, promised=True, stored_plan=decision.plans[one.id],
            gpus_now=len(decision.placements[one.id]), placement=decision.placements[one.id],
        )
        for one in before.jobs
    )  # fmt: skip
    small = job("small", 2.0, NOW + 4.0, {1: 1.0}, submitted_at=NOW)
    asked = replace(before, jobs=(*running, small))
    assert verdicts(ELASTICFLOW.replan(asked)) == verdicts(PUNCTUAL.replan(asked)) == {"small": admitted}


def test_demand_is_learnt_only_by_policies_that_make_room():
    asked = squeezing(ExpectedDemand())
    learnt = ExpectedDemand.recalled(np.array(PUNCTUAL.admit(asked).memory))
    assert learnt.gpu_seconds.sum() == pytest.approx(2 * 2.5 / 1.5 + 1.0)
    assert ELASTICFLOW.admit(asked).memory == ()


@pytest.mark.slow
def test_in_deep_overload_making_room_does_not_crowd_out_small_jobs():
    """Months of long jobs on one server, summed over slots, since a single slot varies too much."""
    traces = [load_workload("philly:jobs=100", seed=seed) for seed in range(3)]

    def met(policy: str) -> int:
        sum_met = 0
        for trace in traces:
            for slot_seconds in (56.0, 60.0, 64.0):
                pool = PoolSize(reference_gpu_type(trace), 1, 8)
                outcome = Simulation(
                    trace, SimulationSettings(policy, (pool,), slot_seconds=slot_seconds)
                ).run()
                assert not outcome.broken
                sum_met += int((outcome.jobs.completed_at <= trace.deadline_at + 1e-3).sum())
        return sum_met

    assert met("punctual") >= met("elasticflow")
