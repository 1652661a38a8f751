"""Decisions beyond the worked examples: refusals, soft deadlines, risk, locks, blocks, trades."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from scheduling.core.decide import admit, replan
from scheduling.core.question.decision import ChangeKind, ReasonCode
from scheduling.core.question.snapshot import NO_DEADLINE, BlockedGpus, JobSnapshot, ServiceClass, StoredPlan
from scheduling.core.question.validation import Unplannable
from simulation.policies import policy_named
from tests.core.building import C3, UNIT_SLOTS, after, job, per_slot, sizes, snapshot, verdicts

ONE = {1: 1.0}


def running(name: str, work: float, deadline: float, placement: tuple[int, ...], **facts) -> JobSnapshot:
    """Return a promised job on its GPUs, with a plan that keeps them until it ends."""
    facts.setdefault("measured", {len(placement): 1.0})
    facts.setdefault("pause", 0.0)
    finish = facts.pop("now", 0.0) + work
    plan = StoredPlan(
        np.array([0.0]), np.array([np.ceil(finish)]), np.array([len(placement)]), finish_at=finish
    )
    return job(
        name, work, deadline, newcomer=False, promised=True, gpus_now=len(placement),
        placement=placement, stored_plan=plan, **facts,
    )  # fmt: skip


def test_a_deadline_in_the_past_is_refused_with_its_age():
    verdict = admit(snapshot(4, job("A", 1, 5.0), now=8.0)).verdicts[0]
    assert verdict.reason_code is ReasonCode.DEADLINE_PASSED
    assert verdict.reason == "the deadline passed 3 s ago"


def test_reason_names_the_run_time_of_a_job_too_slow_for_the_cluster():
    verdict = admit(snapshot(4, job("A", 240, 60.0))).verdicts[0]
    assert verdict.reason_code is ReasonCode.TOO_SLOW_ALONE
    assert verdict.reason == (
        "the deadline is in 1 min; alone on the cluster the job still takes 2 min on 4 GPUs"
    )


@pytest.mark.parametrize("policy", ["punctual", "elasticflow", "edf_admission"])
@pytest.mark.parametrize("service_class", list(ServiceClass))
def test_job_without_iterations_is_refused_with_the_reason(policy: str, service_class: ServiceClass):
    deadline = NO_DEADLINE if service_class is ServiceClass.BEST_EFFORT else 60.0
    empty = job("A", 0, deadline, service_class=service_class)
    (verdict,) = policy_named(policy).admit(snapshot(4, empty)).verdicts
    assert (verdict.admitted, verdict.reason_code) == (False, ReasonCode.NO_WORK)
    assert verdict.reason == "the job has no iterations to do; ask for at least one iteration"


def test_a_job_without_a_usable_level_is_refused_even_as_best_effort():
    needs_more = job("A", 1, measured={8: 1.0})
    verdict = admit(snapshot(4, needs_more)).verdicts[0]
    assert not verdict.admitted
    assert verdict.reason_code is ReasonCode.NO_LEVELS
    assert "at least 8 GPUs" in verdict.reason


def test_a_refusal_names_the_missing_share():
    first = running("A", 10, 10, (0, 1, 2), measured={1: 0.3, 2: 0.6, 3: 1.0})
    first = replace(first, curve=replace(first.curve, levels=np.array([3]), throughput=np.array([1.0]),
                                       pause_seconds=np.array([0.0])))  # fmt: skip
    verdict = admit(snapshot(4, first, job("B", 20, 11, {1: 1.0, 2: 2.0}))).verdicts[0]
    assert verdict.reason_code is ReasonCode.CAPACITY
    assert verdict.missing_gpus == 1
    assert verdict.reason == (
        "finishing within 11 s takes 2 GPUs alone on the cluster; promises leave 1 GPU in 0 s: 1 GPU short"
    )


def test_a_soft_job_is_kept_without_a_promise_when_there_is_no_room():
    soft = ServiceClass.SOFT
    decision = replan(
        snapshot(2, job("A", 4, 4, ONE), job("B", 4, 4, ONE), job("W", 2, 3, ONE, service_class=soft))
    )
    verdict = next(verdict for verdict in decision.verdicts if verdict.job_id == "W")
    assert (verdict.admitted, verdict.promised) == (True, False)
    assert verdict.reason_code is ReasonCode.SOFT_UNPROMISED
    assert per_slot(decision.plans["W"], 6) == [0, 0, 0, 0, 1, 1]

    alone = admit(snapshot(2, job("W", 2, 3, ONE, service_class=soft))).verdicts[0]
    assert alone.promised


def test_refused_newcomer_changes_no_plan_of_other_jobs():
    first = replan(snapshot(2, job("A", 4, 4, C3)))
    a = after(job("A", 4, 4, C3), first, remaining=4)
    with_refusal = replan(snapshot(2, a, job("B", 50, 20, C3, submitted_at=1.0)))
    without = replan(snapshot(2, a))
    assert with_refusal.placements["A"] == without.placements["A"]
    assert per_slot(with_refusal.plans["A"], 5) == per_slot(without.plans["A"], 5)


def test_unkeepable_promise_is_at_risk_and_does_not_block_others():
    slow = running("slow", 9, 4, (0,))
    decision = replan(snapshot(2, slow, job("B", 3, 4, ONE, submitted_at=1.0)))
    assert decision.at_risk == ("slow",)
    assert verdicts(decision) == {"B": True}
    assert sizes(decision) == {"slow": 1, "B": 1}


def test_a_job_at_risk_is_regular_again_once_there_is_capacity():
    late = replace(running("A", 3, 4, (0,)), at_risk=True)
    assert replan(snapshot(2, late)).at_risk == ()


def test_allocations_stay_frozen_until_the_next_slot():
    first = replan(snapshot(4, job("A", 8, 8)))
    assert sizes(first) == {"A": 4}
    a = after(job("A", 8, 8), first, remaining=6)
    between = admit(snapshot(4, a, job("B", 4, 4, submitted_at=1.2), now=1.25, next_slot_at=2.0))
    assert verdicts(between) == {"B": True}
    assert between.changes == ()
    assert between.placements["A"] == a.placement
    plan = between.plans["B"]
    assert (float(plan.start[0]), int(plan.gpus[0])) == (1.25, 0)
    assert per_slot(plan, 2, start=2.0) == [4, 4]
    assert per_slot(between.plans["A"], 1, start=1.25, slot=0.75) == [4]


def test_a_locked_job_keeps_its_gpus_through_the_next_slot():
    locked = job("B", 100, newcomer=False, gpus_now=4, placement=(0, 1, 2, 3), locked=True)
    decision = replan(snapshot(4, locked, job("S", 3, 4, submitted_at=1.0)))
    assert verdicts(decision) == {"S": True}
    assert sizes(decision) == {"B": 4, "S": 0}
    assert decision.changes == ()
    assert per_slot(decision.plans["S"], 1) == [0]

    impossible = admit(snapshot(4, locked, job("S", 2, 1, submitted_at=1.0)))
    assert verdicts(impossible) == {"S": False}


def test_blocked_gpus_are_unused_until_they_are_free():
    blocked = (BlockedGpus((0, 1, 2, 3), until=2.0),)
    decision = replan(snapshot((4, 4), job("A", 40), blocked=blocked))
    assert decision.placements["A"] == (4, 5, 6, 7)

    tight = admit(snapshot(4, job("A", 2, 1.5), blocked=blocked))
    assert verdicts(tight) == {"A": False}
    later = admit(snapshot(4, job("A", 4, 4), blocked=blocked))
    assert per_slot(later.plans["A"], 4) == [0, 0, 4, 4]


def test_gpus_awaited_by_a_locked_job_are_free_once_their_block_ends():
    """The locked job needs less than a slot, but the job that it waits for may hold the GPUs for three
    slots."""
    waiting = job("B", 1, newcomer=False, gpus_now=4, placement=(0, 1, 2, 3), locked=True)
    blocked = (BlockedGpus((2, 3), until=3.0),)
    early = admit(snapshot(4, waiting, job("S", 4, 4, submitted_at=1.0), blocked=blocked))
    assert verdicts(early) == {"S": False}
    later = admit(snapshot(4, waiting, job("S", 4, 7, submitted_at=1.0), blocked=blocked))
    assert verdicts(later) == {"S": True}
    assert per_slot(later.plans["S"], 5)[:3] == [0, 0, 0]


def test_a_job_on_gpus_that_become_blocked_moves_away():
    first = replan(snapshot((4, 4), job("A", 40)))
    a = after(job("A", 40), first, remaining=40)
    decision = replan(snapshot((4, 4), a, blocked=(BlockedGpus(a.placement, until=5.0),)))
    assert not set(decision.placements["A"]) & set(a.placement)


def test_no_promise_needs_servers_split_by_blocked_gpus():
    split = (BlockedGpus((0,), until=3.0), BlockedGpus((4,), until=3.0))
    early = admit(snapshot((4, 4), job("A", 2, 2, {4: 1.0}), blocked=split))
    assert verdicts(early) == {"A": False}


def test_promised_job_runs_on_fewer_gpus_while_blocks_split_servers():
    first = replan(snapshot((4, 4), job("A", 16, 12, {2: 1.0, 4: 2.0})))
    waiting = replace(
        after(job("A", 16, 12, {2: 1.0, 4: 2.0}), first, remaining=16), gpus_now=0, placement=()
    )
    split = (BlockedGpus((0,), until=3.0), BlockedGpus((4,), until=3.0))
    decision = replan(snapshot((4, 4), waiting, blocked=split))
    assert decision.at_risk == ()
    assert len(decision.placements["A"]) == 2


def test_jobs_of_a_lost_server_migrate_with_their_pause_charged():
    promised = running("A", 4, 9, (4, 5), measured={2: 1.0}, pause=0.5)
    cluster = snapshot((4, 4), promised)
    broken = replace(cluster, servers=(cluster.servers[0], replace(cluster.servers[1], usable=False)))
    decision = replan(broken)
    assert decision.placements["A"] == (0, 1)
    (change,) = decision.changes
    assert (change.kind, change.pause_seconds) == (ChangeKind.MIGRATE, 0.5)
    assert decision.plans["A"].finish_at == pytest.approx(4.5)


def test_a_pause_is_part_of_the_promise():
    without = admit(snapshot(1, job("A", 4, 4, ONE)))
    assert verdicts(without) == {"A": True}
    paused = admit(snapshot(1, job("A", 4, 4, ONE, pause=0.25)))
    assert verdicts(paused) == {"A": False}
    roomy = admit(snapshot(1, job("A", 4, 4.25, ONE, pause=0.25)))
    assert verdicts(roomy) == {"A": True}
    assert roomy.plans["A"].finish_at == pytest.approx(4.25)


def test_storing_the_final_weights_is_part_of_the_promise():
    assert verdicts(admit(snapshot(1, job("A", 4, 4.4, ONE, finishing_seconds=0.5)))) == {"A": False}
    decision = admit(snapshot(1, job("A", 4, 4.5, ONE, finishing_seconds=0.5)))
    assert verdicts(decision) == {"A": True}
    assert decision.plans["A"].finish_at == pytest.approx(4.0)
    assert decision.plans["A"].end[-1] == 5.0


def test_a_promise_without_slack_is_not_moved_to_make_room_for_growth():
    """S has no slack; e would need GPUs of S."""
    tight = [
        running("S", 6, 6, (2, 3), measured={2: 1.0}, pause=0.5),
        running("T", 6, 6, (4, 5), measured={2: 1.0}, pause=0.5),
    ]
    best_effort = job("e", 50, measured={4: 1.0}, pause=0.1, submitted_at=1.0)
    decision = replan(snapshot((4, 4), *tight, best_effort))
    assert decision.at_risk == ()
    assert decision.placements["S"] == (2, 3)
    assert decision.placements["T"] == (4, 5)
    assert decision.placements["e"] == ()

    slack = [replace(promised, deadline_at=9.0) for promised in tight]
    moved = replan(snapshot((4, 4), *slack, best_effort))
    assert len(moved.placements["e"]) == 4
    assert sorted(change.kind.value for change in moved.changes) == ["migrate", "start"]


def test_jobs_waiting_for_each_other_are_parted_by_a_suspension():
    """The growing job needs the small job's GPUs, and the small job fits only on the growing job's GPUs."""
    growing = job(
        "growing", 50, measured={2: 1.0, 4: 3.0}, pause=1.0, newcomer=False, gpus_now=2, placement=(4, 5)
    )
    small = job("small", 50, measured={2: 1.5}, pause=0.5, newcomer=False, gpus_now=2, placement=(0, 1))
    decision = replan(snapshot((4, 2), growing, small))
    assert decision.placements == {"growing": (0, 1, 2, 3), "small": (4, 5)}
    changes = {change.job_id: change for change in decision.changes}
    assert changes["small"].suspend_first
    assert changes["small"].pause_seconds == pytest.approx(1.5), "its own pause after that of the growing job"
    assert not changes["growing"].suspend_first
    assert changes["growing"].pause_seconds == pytest.approx(1.0)

    promised = replace(small, service_class=ServiceClass.SLO, promised=True, deadline_at=80.0)
    careful = replan(snapshot((4, 2), growing, promised))
    changes = {change.job_id: change for change in careful.changes}
    assert changes["growing"].suspend_first, "the best-effort job is suspended first"
    assert careful.at_risk == ()


def test_an_unknown_policy_is_refused_with_the_list_of_policies():
    assert policy_named("punctual").name == "punctual"
    with pytest.raises(ValueError, match="there is no policy 'nonsense'; there are .*elasticflow"):
        policy_named("nonsense")


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"gpus_now": 2, "placement": (0,)}, "holds 2 GPUs but lists 1"),
        ({"promised": True}, "job A: a best-effort job cannot hold a promise"),
    ],
)
def test_a_snapshot_that_contradicts_itself_is_refused(facts, message):
    with pytest.raises(ValueError, match=message):
        replan(snapshot(2, job("A", 1, newcomer=False, **facts)))


def test_two_jobs_on_one_gpu_are_refused():
    first, second = (job(name, 1, newcomer=False, gpus_now=1, placement=(1,)) for name in "AB")
    with pytest.raises(Unplannable, match="job B: it holds GPU 1, which job A holds"):
        replan(snapshot(2, first, second))


def test_two_jobs_of_one_name_are_refused():
    with pytest.raises(ValueError, match="appears twice"):
        admit(snapshot(2, job("A", 1), job("A", 2), settings=UNIT_SLOTS))
