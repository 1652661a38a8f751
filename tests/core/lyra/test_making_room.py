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
NO_ROOM_FOR_ANY_JOB = tuple(ExpectedDemand().noted(0.0, 0, 1e-6, 20.0).remembered().tolist())
"""Memory of a policy for which a typical newcomer needs almost nothing: making room always costs too much."""


def after_jobs_of(*gpu_seconds: float) -> ExpectedDemand:
    demand = ExpectedDemand()
    for number, gpu_time in enumerate(gpu_seconds):
        demand = demand.noted(float(number), 0, gpu_time, 20.0)
    return demand


def squeezing(demand: ExpectedDemand, **facts) -> Snapshot:
    """Return two jobs on two GPUs: X takes both until its deadline; Y fits only if X is replanned to begin on
    one GPU. The paper's rule refuses Y."""
    x = job("X", 2.5, NOW + 2.0, C3, submitted_at=NOW - 1.0)
    y = job("Y", 1.0, NOW + 2.0, C3, submitted_at=NOW, **facts)
    memory = tuple(demand.remembered().tolist())
    return snapshot(2, x, y, now=NOW, settings=UNIT_SLOTS, memory=memory)


def test_room_is_made_for_a_newcomer_that_needs_no_more_than_most():
    assert verdicts(ELASTICFLOW.replan(squeezing(ExpectedDemand()))) == {"X": True, "Y": False}
    assert verdicts(PUNCTUAL.replan(squeezing(ExpectedDemand()))) == {"X": True, "Y": True}
    assert verdicts(PUNCTUAL.replan(squeezing(after_jobs_of(0.1, 3.0, 2.5)))) == {"X": True, "Y": True}


def test_refusal_shows_the_cost_of_making_room():
    decision = PUNCTUAL.replan(squeezing(after_jobs_of(0.5, 0.5, 0.5, 0.5, 90.0)))
    assert verdicts(decision) == {"X": True, "Y": False}
    refusal = decision.verdicts[1]
    assert refusal.reason_code is ReasonCode.CAPACITY
    figures = re.search(
        r"making room would take ([\d.e-]+) GPU hours, and half of the jobs submitted of late need at most "
        r"([\d.e-]+) GPU hours",
        refusal.reason,
    )
    assert figures is not None
    assert float(figures[1]) == pytest.approx(1.0 / 3600.0, rel=0.01)
    assert float(figures[2]) == pytest.approx(0.5 / 3600.0, rel=0.2)  # sizes are learnt in steps


def test_half_of_the_submissions_need_at_most_the_typical_need():
    assert after_jobs_of().typical() == np.inf
    assert after_jobs_of(1.0, 1.0, 1.0, 500.0, 500.0).typical() == pytest.approx(1.0, rel=0.2)
    assert after_jobs_of(1.0, 1.0, 500.0, 500.0, 500.0).typical() == pytest.approx(500.0, rel=0.2)


def admission_of(question: Snapshot) -> tuple[Admission, int]:
    problem = build_problem(question)
    budget = PauseBudget(problem, Seating(problem.present_placement))
    return Admission(problem, budget, search=SearchLimits()), problem.newcomers[0]


def states_with_newcomers(seeds: range) -> list[Snapshot]:
    """Return states that `punctual` reached, each with one newcomer."""
    states = []
    for seed in seeds:
        instance = random_snapshot(seed, LOADS["loaded"], pause=0.1 if seed % 2 else 0.0)
        early = replace(instance, jobs=instance.jobs[: len(instance.jobs) // 2])
        later = one_slot_later(early, PUNCTUAL.replan(early))
        states += [
            replace(later, jobs=(*later.jobs, newcomer)) for newcomer in instance.jobs[len(early.jobs) :]
        ]
    return states


def test_every_job_that_algorithm_1_promises_is_promised():
    """The state is the same, and a typical newcomer may need very little."""
    promised = refused = 0
    for state in states_with_newcomers(range(24)):
        question = replace(state, memory=NO_ROOM_FOR_ANY_JOB)
        (published,) = ELASTICFLOW.admit(question).verdicts
        (verdict,) = PUNCTUAL.admit(question).verdicts
        assert verdict.promised == published.promised
        assert PUNCTUAL.admit(state).verdicts[0].promised or not published.promised
        promised += published.promised
        refused += not published.promised
    assert promised > 10
    assert refused > 5


def test_room_that_is_made_is_made_wherever_more_is_typical():
    rooms = 0
    for state in states_with_newcomers(range(24)):
        if ELASTICFLOW.admit(state).verdicts[0].promised:
            continue
        admission, row = admission_of(state)
        answers = [room_made(admission, row, SearchLimits(), most)[0] for most in (1e-9, 0.5, 1.0, 2.0, 1e9)]
        has_room = [plans is not None for plans in answers]
        assert has_room == sorted(has_room)
        rooms += has_room[-1]
    assert rooms > 0


def four_large(busy: float) -> tuple[JobSnapshot, ...]:
    """Return four jobs that each need two GPUs for the share ``busy`` of the time to their deadlines."""
    return tuple(
        job(f"large{number}", busy * 1.6 * window, NOW + window, {1: 1.0, 2: 1.6}, submitted_at=NOW - 1.0)
        for number, window in enumerate((100.0, 120.0, 140.0, 160.0))
    )


@pytest.mark.parametrize(("busy", "admitted"), [(0.85, True), (1.0, False)])
def test_small_job_beside_four_large_promises_is_decided_as_published(busy, admitted):
    """Four promises hold all eight GPUs."""
    before = snapshot(8, *four_large(busy), now=NOW, settings=UNIT_SLOTS, memory=NO_ROOM_FOR_ANY_JOB)
    decision = PUNCTUAL.replan(before)
    assert all(verdicts(decision).values())
    running = tuple(
        replace(
            large, newcomer=False, promised=True, stored_plan=decision.plans[large.id],
            gpus_now=len(decision.placements[large.id]), placement=decision.placements[large.id],
        )
        for large in before.jobs
    )  # fmt: skip
    small = job("small", 2.0, NOW + 4.0, {1: 1.0}, submitted_at=NOW)
    question = replace(before, jobs=(*running, small))
    assert (
        verdicts(ELASTICFLOW.replan(question)) == verdicts(PUNCTUAL.replan(question)) == {"small": admitted}
    )


def test_demand_is_learnt_only_by_policies_that_make_room():
    question = squeezing(ExpectedDemand())
    learnt = ExpectedDemand.recalled(np.array(PUNCTUAL.admit(question).memory))
    assert learnt.gpu_seconds.sum() == pytest.approx(2 * 2.5 / 1.5 + 1.0)
    assert ELASTICFLOW.admit(question).memory == ()


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
