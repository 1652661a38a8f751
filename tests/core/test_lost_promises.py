"""What becomes of a promise that no plan keeps any more: hurried, never demoted, never a crash."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from scheduling.core.decide import replan
from scheduling.core.decision import Decision
from scheduling.core.snapshot import (
    NO_DEADLINE,
    JobSnapshot,
    PlannerSettings,
    ScalingCurve,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
    StoredPlan,
)
from scheduling.policies import policy_named

CURVE = ScalingCurve(np.array([1, 2, 4]), np.array([1.0, 1.9, 3.5]), np.array([0.0, 0.0, 0.0]))


def promised(*, remaining: float, deadline: float) -> JobSnapshot:
    plan = StoredPlan(np.array([0.0]), np.array([deadline]), np.array([4]), deadline)
    return JobSnapshot(
        "promised", ServiceClass.SLO, 0.0, deadline, remaining, CURVE,
        promised=True, gpus_now=4, placement=(0, 1, 2, 3), stored_plan=plan,
    )  # fmt: skip


def test_a_job_that_is_a_little_late_keeps_its_gpus_against_best_effort() -> None:
    late = promised(remaining=40.0, deadline=10.0)
    patient = JobSnapshot("patient", ServiceClass.BEST_EFFORT, 0.0, NO_DEADLINE, 5.0, CURVE)
    decision = replan(Snapshot(0.0, 0.0, (ServerSnapshot("a", 4),), (late, patient)))
    assert decision.at_risk == ("promised",)
    assert decision.placements["promised"] == (0, 1, 2, 3)
    assert not decision.changes


def test_a_job_at_risk_takes_nothing_that_a_promise_needs() -> None:
    late = promised(remaining=100.0, deadline=10.0)
    safe = JobSnapshot(
        "safe", ServiceClass.SLO, 0.0, 10.0, 18.0, CURVE,
        promised=True, stored_plan=StoredPlan(np.array([0.0]), np.array([10.0]), np.array([2]), 9.5),
    )  # fmt: skip
    decision = replan(Snapshot(0.0, 0.0, (ServerSnapshot("a", 4),), (late, safe)))
    assert decision.at_risk == ("promised",)
    assert len(decision.placements["safe"]) >= 2


def test_a_promise_without_any_usable_server_is_at_risk_and_nothing_breaks() -> None:
    gone = Snapshot(
        0.0, 0.0, (ServerSnapshot("a", 4, usable=False),), (promised(remaining=30.0, deadline=60.0),)
    )
    decision = replan(gone)
    assert decision.at_risk == ("promised",)


def rival(*, deadline: float) -> JobSnapshot:
    """A newcomer that needs three seconds of all four GPUs."""
    return JobSnapshot("rival", ServiceClass.SLO, 0.0, deadline, 10.5, CURVE, newcomer=True)


def ask(policy: str, newcomer: JobSnapshot) -> tuple[Decision, float]:
    """The decision while the promised job is a second and a half late, and when that job then ends."""
    late = promised(remaining=40.0, deadline=10.0)
    decision = policy_named(policy).replan(
        Snapshot(
            0.0, 0.0, (ServerSnapshot("a", 4),), (late, newcomer), settings=PlannerSettings(slot_seconds=1.0)
        )
    )
    assert decision.at_risk == ("promised",)
    return decision, decision.plans["promised"].finish_at


def test_a_newcomer_is_not_promised_what_a_job_at_risk_needs_to_end_soon() -> None:
    decision, ends_at = ask("punctual", rival(deadline=11.0))
    assert not decision.verdicts[0].admitted
    assert ends_at == pytest.approx(40.0 / 3.5)


def test_a_newcomer_is_promised_what_the_job_at_risk_leaves() -> None:
    decision, ends_at = ask("punctual", rival(deadline=16.0))
    assert decision.verdicts[0].promised
    assert ends_at == pytest.approx(40.0 / 3.5)


def test_the_published_rule_lets_go_of_a_job_at_risk() -> None:
    decision, ends_at = ask("elasticflow", rival(deadline=11.0))
    assert decision.verdicts[0].promised
    assert ends_at > 40.0 / 3.5 + 1.0


def test_an_offer_leaves_a_job_at_risk_what_it_needs_too() -> None:
    snapshot = Snapshot(
        0.0,
        0.0,
        (ServerSnapshot("a", 4),),
        (promised(remaining=40.0, deadline=10.0),),
        settings=PlannerSettings(slot_seconds=1.0, offer_hold_seconds=0.0),
    )
    offers = {
        policy: policy_named(policy).find_offer(snapshot, rival(deadline=11.0))
        for policy in ("punctual", "elasticflow")
    }
    assert offers["punctual"] is not None
    assert offers["punctual"].deadline_at >= 40.0 / 3.5 + 3.0
    assert offers["elasticflow"] is not None
    assert offers["elasticflow"].deadline_at == 11.0


def test_kept_promises_fall_back_on_their_least_shares_for_a_job_at_risk() -> None:
    grown = dataclasses.replace(
        promised(remaining=30.0, deadline=100.0),
        id="grown",
        stored_plan=StoredPlan(np.array([0.0]), np.array([30.0 / 3.5]), np.array([4]), 30.0 / 3.5),
    )
    late = dataclasses.replace(
        promised(remaining=19.0, deadline=5.0), at_risk=True, gpus_now=0, placement=(), stored_plan=None
    )
    snapshot = Snapshot(
        0.0, 0.0, (ServerSnapshot("a", 4),), (grown, late), settings=PlannerSettings(slot_seconds=1.0)
    )
    decision = policy_named("punctual").replan(snapshot)
    assert decision.at_risk == ("promised",)
    assert decision.plans["promised"].finish_at == pytest.approx(10.0), "two GPUs from now on, not four later"
    assert decision.plans["grown"].finish_at <= 100.0


def stored(*pieces: tuple[float, int]) -> StoredPlan:
    """A plan of (end, GPUs) pieces from now on."""
    ends = np.array([end for end, _ in pieces])
    starts = np.concatenate(([0.0], ends[:-1]))
    return StoredPlan(starts, ends, np.array([gpus for _, gpus in pieces]), float(ends[-1]))


def test_nobody_grows_into_what_a_stored_plan_takes_within_the_slot() -> None:
    """Two jobs give a GPU back after 5 s, and a third has counted on both since; the slot lasts 10 s."""
    linear = ScalingCurve(np.array([1, 2]), np.array([1.0, 2.0]), np.array([0.0, 0.0]))
    pausing = (
        JobSnapshot(
            name, ServiceClass.SLO, 0.0, 200.0, 30.0, linear, promised=True, gpus_now=1, placement=(address,),
            stored_plan=stored((5.0, 1), (40.0, 0), (80.0, 1)),
        )
        for name, address in (("one", 4), ("two", 5))
    )  # fmt: skip
    growing = JobSnapshot(
        "growing", ServiceClass.SLO, 0.0, 15.0, 41.0, CURVE, promised=True, gpus_now=2, placement=(0, 1),
        stored_plan=stored((5.0, 2), (15.0, 4)),
    )  # fmt: skip
    too_large = ScalingCurve(np.array([8]), np.array([6.0]), np.array([0.0]))
    nowhere = dataclasses.replace(
        growing, id="nowhere", curve=too_large, at_risk=True, gpus_now=0, placement=(), stored_plan=None
    )
    servers = (ServerSnapshot("a", 4), ServerSnapshot("b", 2))
    decision = policy_named("punctual").replan(
        Snapshot(0.0, 0.0, servers, (*pausing, growing, nowhere), settings=PlannerSettings(slot_seconds=10.0))
    )
    assert decision.at_risk == ("nowhere",)
    plans = [plan for plan in decision.plans.values() if plan is not None]
    for at in (0.0, 5.0, 9.9, 10.0):
        held = [plan.gpus[(plan.start <= at) & (at < plan.end)].sum() for plan in plans]
        assert sum(held) <= 6, f"after {at} s"
