"""Jobs paused at any time: they release their GPUs, no plan uses these earlier, and promises are restored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from datetime import timedelta
from unittest.mock import patch

import pytest
from django.db import connection, transaction
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from cluster.models import Cluster
from scheduling.choices import AssignmentState, GenerationState, Goal, JobState, PromiseOutcome
from scheduling.models import Assignment, Generation, Job, JobEvent
from scheduling.services.agents.leases import reconcile
from scheduling.services.generations.generations import create_generation
from scheduling.services.planning import planning
from scheduling.services.planning.planning import run_planner
from scheduling.services.requests.deciding_again import store_plans
from scheduling.services.requests.jobs import job_pause, job_resume
from scheduling.services.rows.plan_json import plan_from_json, same_plan
from scheduling.services.rows.records import lock_cluster
from scheduling.services.snapshots.snapshots import pool_snapshot
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import KIND, SimulatedAgent, settle, settle_through_slots
from tests.control_plane.simulated_time import SimulatedTime

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


@pytest.fixture
def node(cluster: Cluster) -> SimulatedAgent:
    return SimulatedAgent.enrol("node-1", 4, SPEED)


def in_handover(cluster: Cluster, node: SimulatedAgent, submit: Submit) -> Job:
    """Return a job that hands over to a smaller generation, which starts at the agent's next report."""
    job = submit("best_effort", iterations=100_000)
    settle(node)
    with transaction.atomic():
        lock_cluster(cluster.pk)
        job.refresh_from_db()
        live = job.generations.get(state=GenerationState.LIVE)
        gpus = [
            assignment.gpu for assignment in live.assignments.filter(rank__lt=2).select_related("gpu__server")
        ]
        create_generation(job, gpus, epoch=1, reason="test")
    node.obey()
    node.report()
    live.refresh_from_db()
    assert live.goal == Goal.HAND_OVER
    job.refresh_from_db()
    return job


def unreleased(job: Job) -> int:
    return Assignment.objects.filter(job=job).exclude(state=AssignmentState.RELEASED).count()


def obey_and_report(node: SimulatedAgent, times: int = 4) -> None:
    for _ in range(times):
        node.obey()
        node.report()


def test_a_job_paused_in_a_handover_releases_its_gpus(
    cluster: Cluster, node: SimulatedAgent, submit: Submit
) -> None:
    job = in_handover(cluster, node, submit)
    job_pause(job=job, actor=job.owner)
    obey_and_report(node)
    job.refresh_from_db()
    assert unreleased(job) == 0
    assert (job.state, job.checkpoint is not None) == (JobState.SUSPENDED, True)


def test_gpus_of_a_job_paused_in_handover_stay_blocked(
    cluster: Cluster, node: SimulatedAgent, submit: Submit
) -> None:
    job = in_handover(cluster, node, submit)
    job_pause(job=job, actor=job.owner)
    now = timezone.now()
    snapshot = pool_snapshot(Cluster.objects.get(), KIND, now).snapshot
    assert {address for block in snapshot.blocked for address in block.addresses} == {0, 1, 2, 3}
    step_ends_at = job.generations.get(state=GenerationState.HANDOVER).step_expires_at
    assert step_ends_at is not None
    may_last_until = step_ends_at.timestamp() + cluster.suspend_timeout_seconds
    assert all(block.until >= may_last_until for block in snapshot.blocked)
    obey_and_report(node)
    assert pool_snapshot(Cluster.objects.get(), KIND, timezone.now()).snapshot.blocked == ()


def test_no_promise_uses_gpus_that_a_paused_job_still_holds(
    cluster: Cluster, node: SimulatedAgent, submit: Submit, clock: SimulatedTime
) -> None:
    job = in_handover(cluster, node, submit)
    job_pause(job=job, actor=job.owner)
    newcomer = submit(seconds=60, iterations=1000)
    run_planner("test")
    newcomer.refresh_from_db()
    assert newcomer.state == JobState.DECLINED, (
        "the paused job may hold its GPUs beyond the newcomer's deadline"
    )
    obey_and_report(node)
    later = submit(seconds=60, iterations=1000)
    run_planner("test")
    later.refresh_from_db()
    assert later.promised


def test_promise_void_by_a_pause_is_restored_on_resume(node: SimulatedAgent, submit: Submit) -> None:
    job = submit(seconds=600)
    settle(node)
    job.refresh_from_db()
    job_pause(job=job, actor=job.owner)
    job.refresh_from_db()
    assert (job.promised, job.promise_outcome, job.void_reason) == (
        False,
        PromiseOutcome.VOID,
        "paused_by_owner",
    )
    # The job is resumed before its state is stored, and decided once it has released its GPUs.
    job_resume(job=job, actor=job.owner)
    settle(node)
    job.refresh_from_db()
    assert (job.state, job.promised, job.promise_outcome, job.void_reason) == (
        JobState.RUNNING,
        True,
        PromiseOutcome.OPEN,
        "",
    )
    assert job.verdict is not None
    assert "after its pause" in job.verdict["reason"]
    assert job.verdict["slack_seconds"] > 0
    node.complete(job.pk)
    node.report()
    job.refresh_from_db()
    assert job.promise_outcome == PromiseOutcome.MET


def test_a_pass_decides_resumed_jobs_only_within_its_time(
    node: SimulatedAgent, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    jobs = [submit(seconds=36_000, iterations=10) for _ in range(3)]
    settle(node)
    for job in jobs:
        job.refresh_from_db()
        job_pause(job=job, actor=job.owner)
    obey_and_report(node)
    for job in jobs:
        job_resume(job=job, actor=job.owner)
    monkeypatch.setattr(planning, "DECIDING_AGAIN_SECONDS", 0.0)
    for waiting in (2, 1, 0):
        obey_and_report(node)  # jobs that got GPUs in the meantime begin to train
        with patch.object(planning, "wake") as woken:
            run_planner("test")
        assert Job.objects.filter(promise_asked_again=True).count() == waiting
        triggers = [call.kwargs.get("trigger") for call in woken.call_args_list]
        assert ("resumed jobs wait" in triggers) == bool(waiting)
    assert Job.objects.filter(promised=True).count() == 3


def test_plans_that_moved_for_a_promise_are_stored_in_one_statement(
    node: SimulatedAgent, submit: Submit
) -> None:
    jobs = [submit(seconds=36_000, iterations=10) for _ in range(4)]
    settle(node)
    plan = plan_from_json(Job.objects.get(pk=jobs[0].pk).plan)
    assert plan is not None
    moved = replace(plan, finish_at=plan.finish_at + 1.0)
    with CaptureQueriesContext(connection) as captured:
        store_plans({job.pk: moved for job in jobs})
    assert len(captured) == 2
    for job in jobs:
        assert same_plan(plan_from_json(Job.objects.get(pk=job.pk).plan), moved)


def test_unkeepable_promise_stays_void_on_resume_with_a_verdict(
    node: SimulatedAgent, submit: Submit, clock: SimulatedTime
) -> None:
    job = submit(seconds=600)
    settle_through_slots(node)
    job_pause(job=job, actor=job.owner)
    settle_through_slots(node)
    other = submit(seconds=32, iterations=1000)
    settle_through_slots(node)
    other.refresh_from_db()
    assert other.promised
    Job.objects.filter(pk=job.pk).update(deadline_at=timezone.now() + timedelta(seconds=35))
    job_resume(job=job, actor=job.owner)
    settle_through_slots(node)
    job.refresh_from_db()
    other.refresh_from_db()
    assert (job.promised, job.promise_outcome, job.void_reason) == (
        False,
        PromiseOutcome.VOID,
        "paused_by_owner",
    )
    assert job.verdict is not None
    assert job.verdict["reason_code"] == "promise_not_restored"
    assert other.promised
    assert not other.at_risk


def test_a_lost_successor_leaves_the_old_generation_training(
    cluster: Cluster, node: SimulatedAgent, submit: Submit
) -> None:
    job = submit("best_effort", iterations=100_000)
    settle(node)
    with transaction.atomic():
        lock_cluster(cluster.pk)
        job.refresh_from_db()
        live = job.generations.get(state=GenerationState.LIVE)
        successor = create_generation(job, [live.assignments.get(rank=0).gpu], epoch=1, reason="test")
        assert isinstance(successor, Generation)
    node.obey()
    worker = node.workers[(job.pk, successor.number, 0)]
    worker.phase = "preparing"
    node.event(worker, "failed", reason="peer_lost", message="connection reset", traceback="")
    node.report()
    job.refresh_from_db()
    live.refresh_from_db()
    assert (live.state, live.goal) == (GenerationState.LIVE, Goal.TRAIN)
    assert job.state == JobState.RUNNING, "it continues training"


def age_rows(job: Job, seconds: float) -> None:
    at = timezone.now() - timedelta(seconds=seconds)
    JobEvent.objects.filter(job=job).update(happened_at=at)
    Generation.objects.filter(job=job).update(created_at=at)


@pytest.mark.parametrize(
    "difference", ["paused", "stopped_for_no_successor", "waits", "not_running", "unnoticed"]
)
def test_reconciliation_repairs_each_difference(
    cluster: Cluster, node: SimulatedAgent, submit: Submit, difference: str
) -> None:
    """Each difference is written into the rows as if a step had been left out; the next passes repair it."""
    job = submit("best_effort", iterations=100_000)
    settle(node)
    live = job.generations.get(state=GenerationState.LIVE)
    if difference == "paused":
        # The goal is suspend without a time limit, and the workers never suspend.
        job_pause(job=job, actor=job.owner)
        Generation.objects.filter(pk=live.pk).update(step_expires_at=None)
        age_rows(job, 3600)
        reconcile()
        live.refresh_from_db()
        assert live.state == GenerationState.RETIRED
        obey_and_report(node)
        assert unreleased(job) == 0
    elif difference == "stopped_for_no_successor":
        Generation.objects.filter(pk=live.pk).update(goal=Goal.HAND_OVER)
        reconcile()
        settle(node)
        assert job.generations.get(state=GenerationState.LIVE).goal == Goal.TRAIN
    elif difference == "waits":
        other = submit("best_effort", iterations=10)
        with transaction.atomic():
            lock_cluster(cluster.pk)
            gpu = live.assignments.get(rank=0).gpu
            waiting = create_generation(Job.objects.get(pk=other.pk), [gpu], epoch=1, reason="test")
            assert isinstance(waiting, Generation)
        reconcile()
        waiting.refresh_from_db()
        assert waiting.state == GenerationState.PREPARING, "others may still leave"
        age_rows(other, 3600)
        reconcile()
        waiting.refresh_from_db()
        assert waiting.state == GenerationState.RETIRED
    elif difference == "not_running":
        with transaction.atomic():
            lock_cluster(cluster.pk)
            Generation.objects.filter(pk=live.pk).update(state=GenerationState.RETIRED, goal=Goal.STOP)
        reconcile()
        assert Job.objects.get(pk=job.pk).state == JobState.SUSPENDED
        obey_and_report(node)
        assert not Assignment.objects.filter(generation=live, state=AssignmentState.HELD).exists()
    else:
        Job.objects.filter(pk=job.pk).update(state=JobState.SUSPENDED)
        reconcile()
        assert Job.objects.get(pk=job.pk).state == JobState.RUNNING
    assert JobEvent.objects.filter(kind="reconciled").exists()
