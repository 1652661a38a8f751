"""A job that fails repeatedly without progress ends with the cause; a job on failing servers continues."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.utils import timezone

from cluster.models import Cluster
from scheduling.choices import AssignmentState, JobEventKind, JobState, PromiseOutcome, VoidReason
from scheduling.models import Assignment, Job
from scheduling.services.agents.leases import reconcile
from scheduling.services.long_work.housekeeping import KEPT_AFTER_A_FAILURE, delete_old_checkpoints
from scheduling.services.rows.repeated_lines import LINES_IN_A_ROW, record_or_count
from tests.control_plane.conftest import SPEED
from tests.control_plane.generations.test_failures import fall_silent, running_job
from tests.control_plane.simulated_agent import SimulatedAgent, settle

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


def _ended_by_signal(agent: SimulatedAgent, job: Job) -> None:
    worker = agent.rank_zero(job.pk)
    assert worker is not None
    failure = {"reason": "killed", "message": "ended by signal 11", "traceback": "", "iteration": 45}
    agent.event(worker, "failed", **failure)
    agent.report()


def test_repeatedly_killed_job_fails_with_the_reason(cluster: Cluster, submit: Submit) -> None:
    agent = SimulatedAgent.enrol("node-1", 4, SPEED)
    job = running_job(submit, agent)
    worker = agent.rank_zero(job.pk)
    assert worker is not None
    agent.state_stored(worker, 40)
    agent.report()
    Job.objects.filter(pk=job.pk).update(promise_outcome=PromiseOutcome.OPEN)
    for _ in range(3):
        _ended_by_signal(agent, job)
        settle(agent)
    reconcile()
    settle(agent)
    job.refresh_from_db()
    assert job.state == JobState.FAILED
    assert job.failure is not None
    assert job.failure["reason"] == "killed"
    assert job.failure["message"].startswith("it failed 3 times without passing iteration 45, ")
    assert job.failure["message"].endswith("the last time because: ended by signal 11")
    assert (job.promise_outcome, job.void_reason) == (PromiseOutcome.VOID, VoidReason.FAILED_REPEATEDLY)
    assert not Assignment.objects.exclude(state=AssignmentState.RELEASED).exists()
    lines = job.events.filter(kind=JobEventKind.FAILURE).order_by("id").values_list("message", flat=True)
    assert [line[:14] for line in lines] == [f"Failure {number} of 3" for number in (1, 2, 3)]
    last = job.events.get(kind=JobState.FAILED)
    assert last.message.endswith(" Its state at iteration 40 is kept for 7 days.")
    checkpoints = job.checkpoints.filter(deleted_at__isnull=True)
    delete_old_checkpoints(timezone.now() + KEPT_AFTER_A_FAILURE / 2)
    assert list(checkpoints.values_list("iteration", flat=True)) == [40]
    delete_old_checkpoints(timezone.now() + KEPT_AFTER_A_FAILURE)
    assert not checkpoints.exists()


def test_a_failure_on_a_server_that_then_falls_silent_is_excused(cluster: Cluster, submit: Submit) -> None:
    agent = SimulatedAgent.enrol("node-1", 4, SPEED)
    job = running_job(submit, agent)
    Job.objects.filter(pk=job.pk).update(failures=2, failed_at_iteration=job.max_iterations)
    _ended_by_signal(agent, job)
    job.refresh_from_db()
    assert (job.state, job.failures) == (JobState.SUSPENDED, 3), "the server may be the cause"
    fall_silent(agent, cluster)
    reconcile()
    job.refresh_from_db()
    assert (job.state, job.failures) == (JobState.SUSPENDED, 2)


def test_repeated_events_are_counted_on_the_last_line(cluster: Cluster, submit: Submit) -> None:
    SimulatedAgent.enrol("node-1", 4, SPEED)
    job = submit("best_effort")
    for number in range(60):
        record_or_count(job, "interrupted", f"Generation {number} was lost: port 80{number} is closed.")
        record_or_count(job, "change_failed", f"Generation {number} was given up: nobody came.")
    record_or_count(job, "interrupted", "Generation 61 was lost: its disk is full.")
    for kind in ("interrupted", "change_failed"):
        lines = list(job.events.filter(kind=kind).order_by("id"))[:LINES_IN_A_ROW]
        assert " (and 57 more since, the last at " in lines[-1].message
        assert sum(line.detail.get("times", 1) for line in lines) == 60
    assert job.events.filter(kind="interrupted").count() == LINES_IN_A_ROW + 1
