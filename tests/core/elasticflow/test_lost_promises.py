"""A promise that no plan can keep: its job ends as early as possible, is never demoted, and planning does not
fail."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from scheduling.core.decide import replan
from scheduling.core.question.decision import Decision
from scheduling.core.question.snapshot import (
    NO_DEADLINE,
    AdmissionRule,
    JobSnapshot,
    PlannerSettings,
    ScalingCurve,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
    StoredPlan,
)
from simulation.policies import policy_named
from tests.core.building import job, snapshot

CURVE = ScalingCurve(np.array([1, 2, 4]), np.array([1.0, 1.9, 3.5]), np.array([0.0, 0.0, 0.0]))


def promised(*, remaining: float, deadline: float) -> JobSnapshot:
    plan = StoredPlan(np.array([0.0]), np.array([deadline]), np.array([4]), deadline)
    return JobSnapshot(
        "promised", ServiceClass.SLO, 0.0, deadline, remaining, CURVE,
        promised=True, gpus_now=4, placement=(0, 1, 2, 3), stored_plan=plan,
    )  # fmt: skip


def test_slightly_late_job_keeps_its_gpus_against_best_effort() -> None:
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


def test_promise_without_usable_servers_is_at_risk() -> None:
    gone = Snapshot(
        0.0, 0.0, (ServerSnapshot("a", 4, usable=False),), (promised(remaining=30.0, deadline=60.0),)
    )
    decision = replan(gone)
    assert decision.at_risk == ("promised",)


def rival(*, deadline: float) -> JobSnapshot:
    """A newcomer that needs three seconds of all four GPUs."""
    return JobSnapshot("rival", ServiceClass.SLO, 0.0, deadline, 10.5, CURVE, newcomer=True)


def ask(policy: str, newcomer: JobSnapshot) -> tuple[Decision, float]:
    """Return the decision while the promised job is 1.5 s late, and the time at which that job then ends."""
    late = promised(remaining=40.0, deadline=10.0)
    decision = policy_named(policy).replan(
        Snapshot(
            0.0, 0.0, (ServerSnapshot("a", 4),), (late, newcomer), settings=PlannerSettings(slot_seconds=1.0)
        )
    )
    assert decision.at_risk == ("promised",)
    return decision, decision.plans["promised"].finish_at


def test_newcomer_is_not_promised_gpus_that_a_job_at_risk_needs() -> None:
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


def grown_promise(*, remaining: float, deadline: float) -> JobSnapshot:
    """Return a promised job with time to spare that has grown onto four GPUs until it ends."""
    ends_at = remaining / 3.5
    stored = StoredPlan(np.array([0.0]), np.array([ends_at]), np.array([4]), ends_at)
    return dataclasses.replace(
        promised(remaining=remaining, deadline=deadline), id="grown", stored_plan=stored
    )


def beside_a_grown_promise(*, deadline: float) -> Snapshot:
    """Return a waiting job at risk beside a promise with time to spare that has grown onto all four GPUs."""
    grown = grown_promise(remaining=30.0, deadline=100.0)
    late = dataclasses.replace(
        promised(remaining=19.0, deadline=deadline), at_risk=True, gpus_now=0, placement=(), stored_plan=None
    )
    return Snapshot(
        0.0, 0.0, (ServerSnapshot("a", 4),), (grown, late), settings=PlannerSettings(slot_seconds=1.0)
    )


def test_kept_promises_shrink_to_minimum_shares_for_a_job_at_risk() -> None:
    decision = policy_named("punctual").replan(beside_a_grown_promise(deadline=5.0))
    assert decision.at_risk == ("promised",)
    assert decision.plans["promised"].finish_at == pytest.approx(10.0), "two GPUs from now on, not four later"
    assert decision.plans["grown"].finish_at <= 100.0


def test_job_at_risk_recovers_if_minimum_shares_let_it_end_in_time() -> None:
    decision = policy_named("punctual").replan(beside_a_grown_promise(deadline=12.0))
    assert decision.at_risk == ()
    assert decision.plans["promised"].finish_at <= 12.0
    assert decision.plans["grown"].finish_at <= 100.0


def test_a_job_at_risk_whose_agent_is_silent_is_spared_too() -> None:
    """It keeps two GPUs for a slot of 5 s and then has four: 19.4 s in all, unless the newcomer gets them."""
    late = dataclasses.replace(
        promised(remaining=60.0, deadline=5.0), at_risk=True, gpus_now=2, placement=(0, 1), locked=True,
        stored_plan=None,
    )  # fmt: skip
    newcomer = dataclasses.replace(rival(deadline=9.0), remaining_iterations=28.0)
    servers = (ServerSnapshot("a", 4), ServerSnapshot("b", 2))
    decision = policy_named("punctual").replan(
        Snapshot(0.0, 0.0, servers, (late, newcomer), settings=PlannerSettings(slot_seconds=5.0))
    )
    assert not decision.verdicts[0].admitted
    assert decision.plans["promised"].finish_at == pytest.approx(5.0 + (60.0 - 5.0 * 1.9) / 3.5)


def test_a_job_that_nothing_can_help_costs_newcomers_nothing() -> None:
    too_large = ScalingCurve(np.array([8]), np.array([6.0]), np.array([0.0]))
    nowhere = dataclasses.replace(
        promised(remaining=40.0, deadline=5.0), id="nowhere", curve=too_large, at_risk=True, gpus_now=0,
        placement=(), stored_plan=None,
    )  # fmt: skip
    grown = grown_promise(remaining=300.0, deadline=1000.0)
    newcomer = dataclasses.replace(rival(deadline=17.0), remaining_iterations=30.0)
    decision = policy_named("punctual").replan(
        Snapshot(
            0.0,
            0.0,
            (ServerSnapshot("a", 4),),
            (nowhere, grown, newcomer),
            settings=PlannerSettings(slot_seconds=1.0),
        )
    )
    assert decision.at_risk == ("nowhere",)
    assert decision.verdicts[0].promised


def test_newcomer_gets_grown_gpus_that_a_job_at_risk_cannot_use() -> None:
    single = ScalingCurve(np.array([2]), np.array([1.9]), np.array([0.0]))
    late = dataclasses.replace(
        promised(remaining=30.0, deadline=5.0), id="late", curve=single, at_risk=True, gpus_now=2,
        placement=(4, 5), stored_plan=None,
    )  # fmt: skip
    grown = grown_promise(remaining=300.0, deadline=1000.0)
    newcomer = dataclasses.replace(rival(deadline=12.0), remaining_iterations=20.0)
    servers = (ServerSnapshot("a", 4), ServerSnapshot("b", 2))
    decision = policy_named("punctual").replan(
        Snapshot(0.0, 0.0, servers, (late, grown, newcomer), settings=PlannerSettings(slot_seconds=1.0))
    )
    assert decision.verdicts[0].promised
    assert decision.plans["late"].finish_at == pytest.approx(30.0 / 1.9)


def test_an_offer_lies_beside_the_plans_that_promises_have_now() -> None:
    snapshot = beside_a_grown_promise(deadline=5.0)
    settings = dataclasses.replace(snapshot.settings, offer_hold_seconds=0.0)
    offer = policy_named("punctual").find_offer(
        dataclasses.replace(snapshot, settings=settings), rival(deadline=6.0)
    )
    assert offer is not None
    assert offer.plan.start[offer.plan.gpus > 0].min() >= 30.0 / 3.5, (
        "the promised job has all four until then"
    )


def test_a_batch_spares_a_job_at_risk_too() -> None:
    batch = PlannerSettings(slot_seconds=1.0, admission=AdmissionRule.BATCH)
    late = promised(remaining=40.0, deadline=10.0)
    decision = policy_named("punctual").replan(
        Snapshot(0.0, 0.0, (ServerSnapshot("a", 4),), (late, rival(deadline=11.0)), settings=batch)
    )
    assert not decision.verdicts[0].admitted


@pytest.mark.parametrize("pause", [0.0, 0.25], ids=["moves are free", "moves cost a pause"])
def test_promise_without_a_free_block_in_time_is_at_risk(pause: float) -> None:
    """Two jobs in a change split the server; the two free GPUs form no block."""
    changing = [
        job(name, 50, measured={1: 1.0}, newcomer=False, gpus_now=1, placement=(address,), locked=True)
        for name, address in (("left", 0), ("right", 2))
    ]
    plan = StoredPlan(np.array([0.0]), np.array([4.0]), np.array([2]), 4.0)
    due = 4.0 + pause
    split = job("split", 4, due, {2: 1.0}, pause=pause, newcomer=False, promised=True, stored_plan=plan)
    decision = replan(snapshot(4, *changing, split))
    assert decision.placements["split"] == ()
    assert decision.plans["split"].finish_at > due
    assert decision.at_risk == ("split",)
