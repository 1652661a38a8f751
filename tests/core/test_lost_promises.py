"""What becomes of a promise that no plan keeps any more: hurried, never demoted, never a crash."""

from __future__ import annotations

import numpy as np

from scheduling.core.decide import replan
from scheduling.core.snapshot import (
    NO_DEADLINE,
    JobSnapshot,
    ScalingCurve,
    ServerSnapshot,
    ServiceClass,
    Snapshot,
    StoredPlan,
)

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
