"""Earliest deadline first and its variants, on examples of the paper (V1) and examples by hand."""

from __future__ import annotations

from dataclasses import replace

import pytest

from scheduling.core.question.decision import ReasonCode
from simulation.policies import policy_named
from tests.core.building import C3, C4, after, job, sizes, snapshot, verdicts
from tests.policies.asking import FLAT, given, go_on, measured, replanned, simulated, slots
from tests.simulation.engine.worlds import Job

A = Job(at=0, iterations=3, deadline_at=3, curve=C3)
B = Job(at=0, iterations=3, deadline_at=3.5, curve=C3)


def test_v1_edf_misses_one_deadline_of_two():
    outcome = simulated("edf", A, B)
    assert outcome.jobs.completed_at.tolist() == pytest.approx([2.0, 4.0])
    assert outcome.jobs.on_time.tolist() == [True, False]


def test_v1_elastic_shares_meet_both():
    outcome = simulated("edf_elastic", A, B)
    assert outcome.jobs.completed_at.tolist() == pytest.approx([3.0, 3.0])


def test_v1_admission_control_refuses_the_second():
    outcome = simulated("edf_admission", A, B)
    assert outcome.jobs.on_time.tolist() == [True, False]
    assert outcome.jobs.reason_code[1] == ReasonCode.CAPACITY


def test_the_job_due_first_takes_all_it_can_use_and_the_next_the_rest():
    late, soon = job("late", 9, 90, FLAT), job("soon", 9, 9, {1: 1.0, 2: 1.9})
    assert given("edf", 8, late, soon) == {"soon": 2, "late": 4}


def test_jobs_without_a_deadline_come_last():
    assert given("edf", 2, job("free", 9, measured=C4), job("due", 9, 90, C3)) == {"due": 2, "free": 0}


def test_a_late_job_keeps_its_place_at_the_front():
    late = job("late", 9, -5.0, C3)
    assert given("edf", 2, late, job("in-time", 1, 9, C3)) == {"late": 2, "in-time": 0}


def test_only_the_published_variant_scales_past_the_fastest_level():
    points = {1: 1.0, 2: 1.8, 4: 1.2}
    single_job = replace(job("one", 9, 90, points), measured=measured(points))
    assert given("edf", 4, single_job) == {"one": 2}
    assert given("edf_artifact", 4, single_job) == {"one": 4}
    assert given("edf_admission", 4, single_job) == {"one": 2}
    assert given("edf_admission_artifact", 4, single_job) == {"one": 4}


def test_published_variant_wakes_at_a_job_end_not_at_the_slot_end():
    single_job = job("one", 130, 900, {1: 1.0})
    asked = snapshot(1, single_job, settings=slots(60.0))
    assert replanned("edf_artifact", asked).next_wake_at == 130.0
    short = snapshot(1, job("one", 13, 900, {1: 1.0}), settings=slots(60.0))
    assert replanned("edf_artifact", short).next_wake_at == 60.0


def test_a_newcomer_that_would_make_an_admitted_job_late_is_refused():
    first = job("first", 4, 4, C3)
    decision = replanned("edf_admission", snapshot(2, first))
    admitted = after(first, decision, remaining=4)
    urgent = job("urgent", 2, 2, C3)
    answer = replanned("edf_admission", snapshot(2, admitted, urgent))
    verdict = next(verdict for verdict in answer.verdicts if verdict.job_id == "urgent")
    assert not verdict.admitted
    assert verdict.reason_code is ReasonCode.WOULD_BREAK_PROMISE
    assert verdict.broken_job == "first"
    assert sizes(answer) == {"first": 2}


def test_verdicts_between_slots_change_no_allocation():
    first = job("first", 8, 9, C3)
    decision = replanned("edf_admission", snapshot(2, first))
    admitted = after(first, decision, remaining=7)
    second = job("second", 1, 9.5, C3)
    answer = policy_named("edf_admission").admit(snapshot(2, admitted, second, now=0.5, next_slot_at=1.0))
    assert verdicts(answer) == {"second": True}
    assert answer.changes == ()
    assert answer.placements["first"] == admitted.placement


def test_each_reason_to_refuse_is_named():
    def reason(*jobs):
        asked = snapshot(2, *jobs, now=10.0)
        return replanned("edf_admission", asked).verdicts[-1].reason_code

    assert reason(job("past", 1, 9, C3)) is ReasonCode.DEADLINE_PASSED
    assert reason(job("long", 99, 20, C3)) is ReasonCode.TOO_SLOW_ALONE
    assert reason(job("wide", 1, 99, {8: 1.0})) is ReasonCode.NO_LEVELS
    assert reason(job("free", 1, measured=C3)) is ReasonCode.BEST_EFFORT


def test_late_job_blocks_newcomers_only_in_the_published_variant():
    late = job("late", 5, 1, C3, newcomer=False, promised=True)
    new = job("new", 1, 90, C3)
    asked = snapshot(2, late, new)
    assert verdicts(replanned("edf_admission", asked)) == {"new": True}
    assert verdicts(replanned("edf_admission_artifact", asked)) == {"new": False}
    assert replanned("edf_admission", asked).at_risk == ("late",)


def test_admission_control_plans_for_the_pauses_of_its_own_changes():
    tight = job("tight", 3, 2.5, C3, pause=1.0)
    assert verdicts(replanned("edf_admission", snapshot(2, tight))) == {"tight": False}
    assert verdicts(replanned("edf_admission_artifact", snapshot(2, tight))) == {"tight": True}


def test_elastic_scaling_lets_a_hopeless_job_starve_later_ones():
    hopeless = job("hopeless", 99, 2, C4)
    modest = job("modest", 6, 8, {1: 1.0, 2: 1.6})
    assert given("edf_elastic", 4, hopeless, modest) == {"hopeless": 4, "modest": 0}
    assert given("elasticflow", 4, hopeless, modest)["modest"] == 2


def test_elastic_scaling_gives_leftover_gpus_away():
    assert given("edf_elastic", 4, job("due", 4, 4, C4), job("free", 9, measured=C4)) == {"due": 2, "free": 2}


def test_a_run_without_pauses_keeps_what_admission_control_promised():
    jobs = [
        Job(at=float(number), iterations=4 + number % 3, deadline_at=number + 6.0, curve=C4)
        for number in range(12)
    ]
    outcome = simulated("edf_admission", *jobs, gpus=4)
    assert outcome.broken == {}
    assert 0 < int(outcome.jobs.on_time.sum()) < len(jobs)


def test_the_rule_is_followed_over_time():
    early, late = job("early", 4, 9, C3), job("late", 4, 8, C3, submitted_at=1.0)
    decision, second = go_on("edf", snapshot(2, early), 1.0, late)
    assert sizes(decision) == {"early": 2}
    assert sizes(replanned("edf", second)) == {"late": 2, "early": 0}
