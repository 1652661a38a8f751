"""Worked examples of filling and admission: V1-V6, V9, V11, V13, V16-V18, V27."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from scheduling.core.decide import admit, replan
from scheduling.core.question.curves import (
    curve_from_measurements,
    share_on_empty_cluster,
)
from scheduling.core.question.decision import ReasonCode
from scheduling.core.question.snapshot import AdmissionRule, PlannerSettings
from tests.core.building import (
    C3,
    C4,
    UNIT_SLOTS,
    after,
    curve,
    gpu_time,
    job,
    per_slot,
    snapshot,
    suffix,
    verdicts,
)
from tests.core.exact import linear_jobs_feasible

P = {1: 1.0, 2: 1.9, 4: 3.4}
Q = {1: 1.0, 2: 1.2, 4: 1.3}
RESNET50_256 = {
    1: 1.84337, 2: 3.44862, 4: 6.19081, 8: 10.37870, 16: 15.15269, 32: 17.82257, 64: 18.84530,
}  # fmt: skip


def test_v1_both_jobs_of_the_motivating_example_finish_on_time():
    decision = admit(snapshot(2, job("A", 3, 3, C3), job("B", 3, 3.5, C3)))

    assert verdicts(decision) == {"A": True, "B": True}
    for name in ("A", "B"):
        assert per_slot(decision.plans[name], 4) == [1, 1, 1, 0]
        assert decision.plans[name].finish_at == pytest.approx(3.0)


def test_v2_more_gpus_shorten_the_run_and_cost_more_gpu_time():
    measured = curve(C4)
    run_times = [1 / rate for rate in measured.throughput]
    assert run_times == pytest.approx([1, 2 / 3, 1 / 2])
    assert [time * gpus for time, gpus in zip(run_times, measured.levels, strict=True)] == pytest.approx(
        [1, 4 / 3, 2]
    )


@pytest.mark.parametrize(("deadline", "share"), [(1, 1), (2 / 3, 2), (1 / 2, 4), (0.49, None)])
def test_v3_share_on_an_empty_cluster_is_the_least_sufficient_level(deadline, share):
    assert share_on_empty_cluster(curve(C4), 1, deadline) == share

    decision = admit(snapshot(4, job("A", 1, deadline)))
    if share is None:
        assert decision.verdicts[0].reason_code is ReasonCode.TOO_SLOW_ALONE
    else:
        assert per_slot(decision.plans["A"], 1) == [share]


def test_v4_a_lone_job_gets_the_least_level_for_as_long_as_it_needs():
    decision = admit(snapshot(4, job("C", 3, 2)))
    assert per_slot(decision.plans["C"], 2) == [2, 2]
    assert decision.plans["C"].finish_at == pytest.approx(2.0)
    assert gpu_time(decision.plans["C"]) == pytest.approx(4.0)


@pytest.mark.parametrize("settings", [UNIT_SLOTS, suffix()])
def test_v5_job_takes_more_gpus_after_earlier_deadlines_have_passed(settings):
    decision = admit(snapshot(4, job("A", 1, 1), job("B", 1.5, 1), job("C", 3, 2), settings=settings))
    assert verdicts(decision) == {"A": True, "B": True, "C": True}
    assert per_slot(decision.plans["A"], 2) == [1, 0]
    assert per_slot(decision.plans["B"], 2) == [2, 0]
    assert per_slot(decision.plans["C"], 2) == [1, 4]
    assert decision.plans["C"].finish_at == pytest.approx(2.0)
    assert gpu_time(decision.plans["C"]) == pytest.approx(5.0)


def test_v6_linear_jobs_are_feasible_exactly_when_every_prefix_fits():
    assert linear_jobs_feasible([(8, 1, 2), (6, 2, 3), (4, 1, 4)], gpus=4)
    assert not linear_jobs_feasible([(8, 1, 2), (6, 2, 3), (6, 1, 4)], gpus=4)


def test_v9_a_level_divides_the_batch_and_is_no_larger_than_it():
    rising = {gpus: float(gpus) for gpus in (1, 2, 4, 8, 16, 32, 64)}
    levels = curve_from_measurements({g: rising[g] for g in (1, 2, 4, 8, 16)}, global_batch_size=256).levels
    assert [256 // int(level) for level in levels] == [256, 128, 64, 32, 16]
    assert 64 not in curve_from_measurements(rising, global_batch_size=32).levels


def test_levels_begin_where_batches_fit_and_end_where_speed_peaks():
    measured = {1: 4.0, 2: 7.0, 4: 9.0, 8: 8.9, 16: 12.0}
    assert curve_from_measurements(measured).levels.tolist() == [1, 2, 4]
    small_memory = curve_from_measurements(measured, global_batch_size=64, largest_local_batch=20)
    assert small_memory.levels.tolist() == [4]
    assert curve_from_measurements({2: float("nan"), 4: 3.0}).levels.tolist() == [4]


def test_v11_a_newcomer_must_not_break_a_promise():
    first = admit(snapshot(2, job("A", 4, 4, C3)))
    a = after(job("A", 4, 4, C3), first, remaining=4)
    assert per_slot(first.plans["A"], 4) == [1, 1, 1, 1]

    too_much = admit(snapshot(2, a, job("B", 5, 4, C3, submitted_at=0.1)))
    assert verdicts(too_much) == {"B": False}
    assert too_much.verdicts[0].reason_code is ReasonCode.CAPACITY
    assert too_much.verdicts[0].missing_gpus == 1

    fitting = admit(snapshot(2, a, job("C", 4, 4, C3, submitted_at=0.1)))
    assert verdicts(fitting) == {"C": True}
    assert per_slot(fitting.plans["C"], 4) == [1, 1, 1, 1]

    pushing = admit(snapshot(2, a, job("E", 3, 2, C3, submitted_at=0.1)))
    assert verdicts(pushing) == {"E": False}
    assert pushing.verdicts[0].reason_code is ReasonCode.WOULD_BREAK_PROMISE
    assert pushing.verdicts[0].broken_job == "A"
    assert pushing.plans == {}, "a refusal changes nobody's plan"


def test_v13_suffix_filling_leaves_early_capacity_to_urgent_jobs():
    x, y = job("X", 2.5, 2, C3), job("Y", 1, 2, C3, submitted_at=0.1)

    uniform = admit(snapshot(2, x, y))
    assert per_slot(uniform.plans["X"], 2) == [2, 2]
    assert uniform.plans["X"].finish_at == pytest.approx(5 / 3)
    assert uniform.plans["X"].end[-1] == 2.0
    assert verdicts(uniform) == {"X": True, "Y": False}

    late_riser = admit(snapshot(2, x, y, settings=suffix()))
    assert per_slot(late_riser.plans["X"], 2) == [1, 2]
    assert late_riser.plans["X"].finish_at == pytest.approx(2.0)
    assert gpu_time(late_riser.plans["X"]) == pytest.approx(3.0)
    assert verdicts(late_riser) == {"X": True, "Y": True}
    assert per_slot(late_riser.plans["Y"], 2) == [1, 0]

    relaxed = job("X", 2, 4, C3)
    assert per_slot(admit(snapshot(2, relaxed)).plans["X"], 4) == [1, 1, 0, 0]
    assert per_slot(admit(snapshot(2, relaxed, settings=suffix())).plans["X"], 4) == [0, 0, 1, 1]


def test_v16_newcomers_are_decided_one_by_one_or_as_a_batch():
    jobs = [job(name, work, 3, C3) for name, work in (("U", 3), ("V", 4), ("Y", 3))]
    assert verdicts(admit(snapshot(2, *jobs))) == {"U": True, "V": False, "Y": True}

    batch = replace(UNIT_SLOTS, admission=AdmissionRule.BATCH)
    assert verdicts(admit(snapshot(2, *jobs, settings=batch))) == {"U": False, "V": False, "Y": False}
    assert verdicts(admit(snapshot(2, jobs[0], jobs[2], settings=batch))) == {"U": True, "Y": True}


@pytest.mark.parametrize(("deadline", "share"), [(10_000, 8), (7_200, 16), (5_400, 64), (5_300, None)])
def test_v17_a_real_curve_gives_the_published_shares(deadline, share):
    assert share_on_empty_cluster(curve(RESNET50_256), 100_000, deadline) == share
    settings = PlannerSettings(slot_seconds=240)
    decision = admit(snapshot((8,) * 16, job("R", 100_000, deadline, RESNET50_256), settings=settings))
    assert verdicts(decision) == {"R": share is not None}
    if share is not None:
        assert set(decision.plans["R"].gpus.tolist()) == {share}


def test_v17_run_times_and_usage_of_a_real_curve():
    measured = curve(RESNET50_256)
    run_times = 100_000 / measured.throughput
    assert run_times == pytest.approx([54248.3, 28997.1, 16153.0, 9635.1, 6599.5, 5610.9, 5306.4], rel=1e-5)
    assert run_times * measured.levels / 3600 == pytest.approx(
        [15.07, 16.11, 17.95, 21.41, 29.33, 49.87, 94.34], abs=0.006
    )


def test_v17_suffix_filling_of_a_real_curve():
    settings = suffix(PlannerSettings(slot_seconds=240))
    decision = admit(snapshot((8,) * 16, job("R", 100_000, 7_200, RESNET50_256), settings=settings))
    plan = decision.plans["R"]
    assert per_slot(plan, 30, slot=240) == [8] * 7 + [16] * 23
    assert plan.finish_at == pytest.approx(7128.79, abs=0.01)
    assert gpu_time(plan) / 3600 == pytest.approx(27.95, abs=0.005)


@given(st.integers(2, 60_000), st.floats(0.001, 1.999), st.floats(0.01, 0.99))
def test_suffix_filling_rises_in_the_latest_sufficient_slot(slots, rate, within_slot):
    """By arithmetic, on an empty cluster: one slot later the work is not done, however far the deadline."""
    level = 1 if rate <= 1.0 else 2 if rate <= 1.5 else 4
    low, high = {1: (0.0, 1.0), 2: (1.0, 1.5), 4: (1.5, 2.0)}[level]
    latest = int((high - rate) * slots / (high - low))
    assume(latest >= 1)
    # All but a part of a slot's loss is used up.
    work = high * slots - (high - low) * (latest + within_slot)
    assume(work > low * slots)
    plan = admit(snapshot(4, job("A", work, float(slots), C4), settings=suffix())).plans["A"]
    assert plan.gpus[-1] == level
    assert plan.start[-1] == pytest.approx(latest)
    assert plan.finish_at <= slots + 1e-6


def test_v18_deadlines_are_exact_but_gpus_are_held_to_the_slot_end():
    exact = admit(snapshot(2, job("A", 2.5, 2.5, C3))).plans["A"]
    assert exact.gpus.tolist() == [1]
    assert exact.finish_at == pytest.approx(2.5)
    assert exact.end[-1] == 3.0

    tighter = admit(snapshot(2, job("A", 2.6, 2.5, C3))).plans["A"]
    assert tighter.gpus.tolist() == [2]
    assert tighter.finish_at == pytest.approx(2.6 / 1.5)
    assert tighter.end[-1] == 2.0


def test_v27_stored_plans_keep_promises_that_fresh_filling_breaks():
    jobs = [job("J2", 0.5, 1), job("J3", 3.5, 3, P), job("J4", 3.5, 3, Q)]
    first = replan(snapshot(4, *jobs))
    assert all(verdicts(first).values())
    assert per_slot(first.plans["J2"], 3) == [1, 0, 0]
    assert per_slot(first.plans["J3"], 3) == [2, 2, 0]
    assert per_slot(first.plans["J4"], 3) == [1, 2, 4]

    later = [after(jobs[1], first, remaining=1.6), after(jobs[2], first, remaining=2.5)]
    second = replan(snapshot(4, *later, now=1.0))
    assert second.used_stored_plans
    assert second.at_risk == ()
    assert second.plans["J3"].finish_at == pytest.approx(1.0 + 1.6 / 1.9)
    assert second.plans["J4"].finish_at == pytest.approx(3.0)

    afresh = replan(snapshot(4, *later, now=1.0, settings=replace(UNIT_SLOTS, stored_plans=False)))
    assert afresh.at_risk == ("J4",), "without stored plans the promise to J4 is lost"
