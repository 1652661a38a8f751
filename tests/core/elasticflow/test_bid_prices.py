"""Prudent newcomers: room is kept for small jobs; promises and project shares do not change."""

from __future__ import annotations

import re
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.elasticflow.expected_demand import MOST_EXTRAPOLATION, MOST_ROWS, ExpectedDemand
from scheduling.core.question.decision import Decision, ReasonCode
from scheduling.core.question.recording import pack_snapshot, unpack_snapshot
from scheduling.core.question.snapshot import JobSnapshot, Newcomers, ServiceClass
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.run import Simulation
from simulation.policies import policy_named
from tests.core.building import UNIT_SLOTS, job, snapshot, verdicts
from tests.simulation.engine.worlds import Job, workload

PUNCTUAL = policy_named("punctual")
PRUDENT = replace(UNIT_SLOTS, newcomers=Newcomers.PRUDENT, offer_hold_seconds=2.0)
ONE_TO_FOUR = {1: 1.0, 2: 2.0, 4: 4.0}
GPUS = 4
NOW = 1000.0


def after_small_jobs(
    gpu_seconds: float, *, every: float, project: int = 0, demand: ExpectedDemand | None = None
):
    """Return the demand learnt by `NOW` from a job every ``every`` seconds that needs this many GPU seconds
    within 20 seconds."""
    demand = demand or ExpectedDemand()
    for at in np.arange(0.0, NOW, every).tolist():
        demand = demand.noted(at, project, gpu_seconds, 20.0)
    return demand


def at_now(demand: ExpectedDemand, *jobs, settings=PRUDENT):
    return snapshot(GPUS, *jobs, now=NOW, settings=settings, memory=tuple(demand.remembered().tolist()))


def large(id: str = "large", *, within: float = 100.0, **facts):
    return job(id, 300.0, NOW + within, ONE_TO_FOUR, submitted_at=NOW, **facts)


def promised(asking: JobSnapshot, decision: Decision) -> JobSnapshot:
    """Return the job as ``decision`` promised and started it."""
    placement = decision.placements[asking.id]
    return replace(
        asking, newcomer=False, promised=True, stored_plan=decision.plans[asking.id],
        gpus_now=len(placement), placement=placement,
    )  # fmt: skip


def test_room_is_kept_for_expected_small_jobs():
    demand = after_small_jobs(8.0, every=2.0)  # four GPUs' worth
    open_ = PUNCTUAL.replan(at_now(demand, large(), settings=replace(PRUDENT, newcomers=Newcomers.OPEN)))
    assert verdicts(open_) == {"large": True}
    (verdict,) = PUNCTUAL.replan(at_now(demand, large())).verdicts
    assert not verdict.admitted
    assert verdict.reason_code is ReasonCode.ROOM_KEPT
    size = re.search(r"room is kept for jobs that need at most ([\d.]+) GPU hours each", verdict.reason)
    assert size is not None
    assert float(size[1]) == pytest.approx(300.0 / 2**0.5 / 3600.0, rel=0.01)
    small = job("small", 8.0, NOW + 20.0, ONE_TO_FOUR, submitted_at=NOW)
    assert verdicts(PUNCTUAL.replan(at_now(demand, small))) == {"small": True}


def test_a_large_job_is_promised_if_expected_demand_leaves_room():
    demand = after_small_jobs(8.0, every=16.0)  # half a GPU's worth
    assert verdicts(PUNCTUAL.replan(at_now(demand, large()))) == {"large": True}


def test_jobs_about_as_large_are_no_reason_to_refuse():
    for gpu_seconds, admitted in (
        (200.0, True),
        (170.0, False),
    ):  # only jobs below 0.7 of the 300 GPU seconds count
        demand = after_small_jobs(gpu_seconds, every=25.0)
        assert verdicts(PUNCTUAL.replan(at_now(demand, large()))) == {"large": admitted}


def test_a_soft_job_is_kept_without_a_promise():
    demand = after_small_jobs(8.0, every=2.0)
    (verdict,) = PUNCTUAL.replan(at_now(demand, large(service_class=ServiceClass.SOFT))).verdicts
    assert (verdict.admitted, verdict.promised) == (True, False)
    assert "room is kept" in verdict.reason


def test_promises_alone_are_the_reason_where_they_leave_too_little():
    demand = after_small_jobs(8.0, every=2.0)
    first = PUNCTUAL.replan(at_now(ExpectedDemand(), large("first")))
    decision = PUNCTUAL.replan(at_now(demand, promised(large("first"), first), large("second")))
    assert decision.verdicts[0].reason_code in (ReasonCode.CAPACITY, ReasonCode.WOULD_BREAK_PROMISE)
    assert decision.at_risk == ()


def test_a_later_promise_counts_with_its_work_before_the_deadline():
    demand = after_small_jobs(8.0, every=8.0)  # one GPU's worth
    asking = job("asking", 150.0, NOW + 100.0, ONE_TO_FOUR, submitted_at=NOW)
    for curve, admitted in (({1: 1.0, 2: 2.0}, False), (ONE_TO_FOUR, True)):
        later = job("later", 580.0, NOW + 300.0, curve, submitted_at=NOW - 1.0)
        first = PUNCTUAL.replan(at_now(ExpectedDemand(), later))
        (verdict,) = PUNCTUAL.replan(at_now(demand, promised(later, first), asking)).verdicts
        assert verdict.admitted is admitted
        assert admitted or verdict.reason_code is ReasonCode.ROOM_KEPT


def test_offered_deadline_is_promised_when_accepted():
    demand = after_small_jobs(8.0, every=3.0)  # 2.7 GPUs' worth
    asking = large(within=100.0)
    verdict, offer = PUNCTUAL.what_if(at_now(demand), asking)
    assert verdict.reason_code is ReasonCode.ROOM_KEPT
    assert offer is not None
    assert offer.deadline_at > asking.deadline_at
    again = replace(asking, deadline_at=offer.deadline_at)
    assert PUNCTUAL.what_if(at_now(demand), again)[0].promised
    accepted = replace(again, stored_plan=offer.plan)
    assert verdicts(PUNCTUAL.replan(at_now(demand, accepted))) == {"large": True}


def test_no_offer_is_made_where_small_jobs_will_take_all_gpus():
    demand = after_small_jobs(8.0, every=1.0)  # eight GPUs' worth
    verdict, offer = PUNCTUAL.what_if(at_now(demand), large())
    assert verdict.reason_code is ReasonCode.ROOM_KEPT
    assert offer is None


def test_others_do_not_price_a_project_out_of_its_share():
    flood = after_small_jobs(8.0, every=2.0, project=1)
    both = flood.noted(NOW, 2, 8.0, 20.0)
    mine = job("mine", 150.0, NOW + 100.0, ONE_TO_FOUR, submitted_at=NOW, project=2)
    assert verdicts(PUNCTUAL.replan(at_now(both, mine))) == {"mine": True}
    # Beyond its half of the GPUs the project pays the common price, and so does the project that floods the
    # cluster.
    more = replace(mine, id="more", remaining_iterations=300.0)
    assert verdicts(PUNCTUAL.replan(at_now(both, more))) == {"more": False}
    assert verdicts(PUNCTUAL.replan(at_now(both, replace(mine, project=1)))) == {"mine": False}


def test_same_snapshot_gives_same_answer_and_expected_demand_grows():
    demand = after_small_jobs(8.0, every=2.0)
    question = at_now(demand, large(), job("small", 8.0, NOW + 20.0, ONE_TO_FOUR, submitted_at=NOW))
    first, again = PUNCTUAL.admit(question), PUNCTUAL.admit(unpack_snapshot(pack_snapshot(question)))
    assert (first.verdicts[0].reason, first.memory) == (again.verdicts[0].reason, again.memory)
    learnt = ExpectedDemand.recalled(np.array(first.memory))
    assert learnt.gpu_seconds.sum() == pytest.approx(demand._aged(NOW).gpu_seconds.sum() + 308.0)


@given(
    st.lists(
        st.tuples(
            st.floats(0.0, 1e7), st.integers(0, 5), st.floats(1e-3, 1e9), st.floats(1e-3, 1e7)
        ),
        max_size=40,
    ),
    st.floats(1.0, 1e7),
    st.floats(1.0, 1e9),
)  # fmt: skip
def test_expected_demand_is_bounded_by_past_demand(submissions, horizon, below):
    demand, past = ExpectedDemand(), 0.0
    for at, project, gpu_seconds, window in sorted(submissions):
        demand = demand.noted(at, project, gpu_seconds, window)
        past += gpu_seconds if gpu_seconds < below else 0.0
    again = ExpectedDemand.recalled(demand.remembered())
    expected = again.expected(1e7, np.array([horizon, 2 * horizon]), below=below)
    assert (expected >= 0.0).all()
    assert expected[0] <= MOST_EXTRAPOLATION * past * (1 + 1e-9)
    parts = sum(
        again.expected(1e7, np.array([horizon]), below=below, project=number)[0] for number in range(6)
    )
    assert parts == pytest.approx(expected[0])
    assert again.expected(1e7, np.array([horizon]), below=2 * below)[0] >= expected[0] - 1e-6


def test_remembered_demand_has_a_bounded_size():
    demand = ExpectedDemand()
    for number in range(2000):
        demand = demand.noted(float(number), number, 10.0 + number, 60.0)
    assert demand.step.size == MOST_ROWS
    assert demand.project.min() >= 2000 - MOST_ROWS  # least demand goes first


def overload(seed: int, large_share: float):
    """Return a trace of small jobs that fit alone, and a few that take the whole cluster for an hour."""
    rng = np.random.default_rng(seed)
    at = np.sort(rng.uniform(0, 40_000, 300))
    is_large = rng.random(300) < large_share
    work = np.where(is_large, rng.uniform(6_000, 14_000, 300), rng.uniform(100, 500, 300))
    windows = np.where(is_large, work / 3.5, work * rng.uniform(0.6, 2.0, 300))
    return workload(
        [Job(float(a), float(w), float(a + d), curve=ONE_TO_FOUR) for a, w,
        d in zip(at, work, windows, strict=True)]
    )  # fmt: skip


@pytest.mark.slow
@pytest.mark.parametrize("policy", ["punctual", "elasticflow"])
def test_prudence_meets_more_deadlines_only_under_overload(policy):
    def met(trace, newcomers):
        run = SimulationSettings(
            policy, (PoolSize("gpu", 1, 4),), slot_seconds=30.0, newcomers=newcomers, check_invariants=True
        )
        outcome = Simulation(trace, run).run()
        assert not outcome.broken
        return int((outcome.jobs.completed_at <= trace.deadline_at + 1e-3).sum())

    crowded, roomy = overload(3, 0.06), overload(4, 0.0)
    assert met(crowded, Newcomers.PRUDENT) >= 1.2 * met(crowded, Newcomers.OPEN)
    assert met(roomy, Newcomers.PRUDENT) >= met(roomy, Newcomers.OPEN)
