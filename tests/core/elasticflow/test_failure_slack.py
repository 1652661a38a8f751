"""A promise keeps the failure slack of its own job, and only that."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from scheduling.core.decide import admit, find_offer
from scheduling.core.question.decision import ReasonCode
from scheduling.core.question.snapshot import Fill, PlannerSettings
from simulation.policies import policy_named
from tests.core.building import job, snapshot
from tests.core.elasticflow.test_bursts import cluster, decide_in_groups, random_newcomers, same_plan

ONE_IN_RESERVE = PlannerSettings(slot_seconds=1.0, reserve_servers=1)


def test_failure_cost_alone_decides_between_otherwise_equal_jobs() -> None:
    """20 s of work in 30 s: a lost server may cost 5 s but not 12 s."""
    cheap = job("cheap", 20, 30.0, {1: 1.0}, failure_slack_seconds=5.0)
    expensive = job("dear", 20, 30.0, {1: 1.0}, failure_slack_seconds=12.0)
    verdicts = admit(snapshot((1, 1, 1), cheap, expensive, settings=ONE_IN_RESERVE)).verdicts
    assert [(verdict.job_id, verdict.promised) for verdict in verdicts] == [("cheap", True), ("dear", False)]
    assert verdicts[1].reason_code == ReasonCode.TOO_SLOW_ALONE
    without = replace(ONE_IN_RESERVE, reserve_servers=0)
    assert all(
        verdict.promised
        for verdict in admit(snapshot((1, 1, 1), cheap, expensive, settings=without)).verdicts
    )


def test_deadline_order_counts_failure_slack_of_earlier_jobs() -> None:
    """One GPU backs promises. Two jobs need 10 s each by 25 s: the remaining 5 s cover a slack of 5 s, not of
    6 s."""
    first = job("first", 10, 14.0, {1: 1.0}, failure_slack_seconds=4.0)
    fits = job("second", 10, 25.0, {1: 1.0}, failure_slack_seconds=5.0)
    lacks = job("second", 10, 25.0, {1: 1.0}, failure_slack_seconds=6.0)
    for second, promised in ((fits, True), (lacks, False)):
        verdicts = admit(snapshot((1, 1), first, second, settings=ONE_IN_RESERVE)).verdicts
        assert [verdict.promised for verdict in verdicts] == [True, promised]


def test_offer_leaves_the_failure_slack_of_its_job() -> None:
    settings = replace(ONE_IN_RESERVE, offer_hold_seconds=0.0)
    asking = [job("asks", 20, 5.0, {1: 1.0}, failure_slack_seconds=slack) for slack in (3.0, 11.0)]
    offers = [find_offer(snapshot((1, 1), settings=settings), asking_job) for asking_job in asking]
    assert [offer.deadline_at for offer in offers if offer is not None] == [23.0, 31.0]


@given(
    seed=st.integers(0, 10_000), slacks=st.lists(st.floats(0.0, 60.0), min_size=30, max_size=30),
    pauses=st.booleans(), policy=st.sampled_from(["punctual", "elasticflow"]),
    fill=st.sampled_from(list(Fill)), reallocating=st.booleans(),
)  # fmt: skip
def test_a_new_promise_keeps_at_least_its_own_slack(
    seed: int, slacks: list[float], pauses: bool, policy: str, fill: Fill, reallocating: bool
) -> None:
    newcomers = [
        replace(newcomer, failure_slack_seconds=slack)
        for newcomer, slack in zip(random_newcomers(seed, 30, pauses=pauses), slacks, strict=True)
    ]
    question = replace(cluster(3, fill=fill, reserve_servers=1), jobs=tuple(newcomers))
    chosen = policy_named(policy)
    decision = chosen.replan(question) if reallocating else chosen.admit(question)
    promised = {verdict.job_id for verdict in decision.verdicts if verdict.promised}
    for newcomer in newcomers:
        if newcomer.id in promised:
            stored_at = decision.plans[newcomer.id].finish_at + newcomer.finishing_seconds
            assert stored_at + newcomer.failure_slack_seconds <= newcomer.deadline_at + 1e-4


@pytest.mark.parametrize("policy", ["punctual", "elasticflow"])
def test_the_same_slack_for_every_job_is_the_slack_of_the_settings(policy: str) -> None:
    newcomers = random_newcomers(7, 36, pauses=True)
    by_settings = cluster(3, reserve_servers=1, reserve_slack_seconds=6.0)
    by_job = cluster(3, reserve_servers=1)
    with_slack = tuple(replace(entry, failure_slack_seconds=6.0) for entry in newcomers)
    verdicts, plans = decide_in_groups(by_settings, newcomers, [9] * 4, policy)
    same_verdicts, same_plans = decide_in_groups(by_job, with_slack, [9] * 4, policy)
    assert [(entry.promised, entry.reason) for entry in same_verdicts] == [
        (entry.promised, entry.reason) for entry in verdicts
    ]
    assert plans.keys() == same_plans.keys()
    assert all(same_plan(plans[entry], same_plans[entry]) for entry in plans)
