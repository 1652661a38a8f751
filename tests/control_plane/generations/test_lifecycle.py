"""A job passes through the control plane, with agents that answer at once."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.models import Cluster
from scheduling.choices import AssignmentState, JobState, PromiseOutcome
from scheduling.models import Assignment, CurveLevel, Job
from scheduling.services.requests.jobs import job_cancel, job_pause, job_resume
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import SimulatedAgent, settle

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


@pytest.fixture
def node(cluster: Cluster) -> SimulatedAgent:
    return SimulatedAgent.enrol("node-1", 4, SPEED)


def gpus_held(job: Job) -> int:
    assignments = Assignment.objects.filter(job=job, state=AssignmentState.HELD, generation__state="live")
    return assignments.count()


def test_new_function_is_measured_promised_and_trained_to_the_end(
    node: SimulatedAgent, submit: Submit
) -> None:
    job = submit(seconds=600, measured=False)
    settle(node)
    job.refresh_from_db()
    assert sorted(CurveLevel.objects.values_list("gpus", flat=True)) == [1, 2, 4]
    assert (job.state, job.promised, job.promise_outcome) == (JobState.RUNNING, True, PromiseOutcome.OPEN)
    assert gpus_held(job) == 4, "a single job uses the whole cluster"
    node.complete(job.pk)
    node.report()
    settle(node)
    job.refresh_from_db()
    assert (job.state, job.promise_outcome) == (JobState.COMPLETED, PromiseOutcome.MET)
    assert job.artifacts.get().name == "weights.pt"
    assert not Assignment.objects.exclude(state=AssignmentState.RELEASED).exists()


def test_a_known_curve_is_not_measured_again(node: SimulatedAgent, submit: Submit) -> None:
    submit(seconds=600, measured=False)
    settle(node)
    second = submit(seconds=900)
    settle(node, rounds=1)
    second.refresh_from_db()
    assert second.state in (JobState.ADMITTED, JobState.RUNNING)
    assert not second.generations.filter(purpose="profiling").exists()


def test_a_tight_newcomer_shrinks_a_promised_job_that_can_spare_gpus(
    node: SimulatedAgent, submit: Submit
) -> None:
    roomy = submit(seconds=600)
    settle(node)
    assert gpus_held(roomy) == 4
    tight = submit(seconds=75, iterations=1000)
    settle(node)
    tight.refresh_from_db()
    assert (tight.state, tight.promised) == (JobState.RUNNING, True)
    assert gpus_held(tight) >= 1
    assert gpus_held(roomy) + gpus_held(tight) == 4
    kinds = list(roomy.events.values_list("kind", flat=True))
    assert "shrink" in kinds


def test_best_effort_job_yields_all_gpus_and_resumes(node: SimulatedAgent, submit: Submit) -> None:
    patient = submit("best_effort", iterations=100_000)
    settle(node)
    assert gpus_held(patient) == 4
    urgent = submit(seconds=40, iterations=1000)
    settle(node)
    urgent.refresh_from_db()
    patient.refresh_from_db()
    assert urgent.state == JobState.RUNNING
    assert gpus_held(urgent) == 4
    assert patient.state == JobState.SUSPENDED
    assert patient.checkpoint is not None
    node.complete(urgent.pk)
    node.report()
    settle(node)
    patient.refresh_from_db()
    assert patient.state == JobState.RUNNING
    assert patient.generations.get(state="live", start__contains={"from": "checkpoint"})


def test_an_impossible_deadline_is_declined_with_numbers_and_an_offer(
    node: SimulatedAgent, submit: Submit
) -> None:
    measured_job = submit(seconds=600)
    settle(node)
    node.complete(measured_job.pk)
    node.report()
    settle(node)
    job = submit(seconds=10, iterations=1000)
    settle(node, rounds=2)
    job.refresh_from_db()
    assert job.state == JobState.DECLINED
    assert job.verdict is not None
    assert job.deadline_at is not None
    assert job.verdict["decision"] == "declined"
    assert any(character.isdigit() for character in job.verdict["reason"])
    assert job.verdict["offer"]["deadline_at"] > job.deadline_at.isoformat()


def test_an_accepted_offer_is_an_admitted_job_that_runs(node: SimulatedAgent, submit: Submit) -> None:
    from scheduling.services.requests.accepting import job_accept_offer

    measured_job = submit(seconds=600)
    settle(node)
    node.complete(measured_job.pk)
    node.report()
    settle(node)
    declined = submit(seconds=10, iterations=1000)
    settle(node, rounds=2)
    declined.refresh_from_db()
    successor = job_accept_offer(job=declined, actor=declined.owner)
    assert (successor.state, successor.promised) == (JobState.ADMITTED, True)
    settle(node)
    successor.refresh_from_db()
    assert (successor.state, successor.at_risk) == (JobState.RUNNING, False)


def test_cancelling_frees_the_gpus(node: SimulatedAgent, submit: Submit) -> None:
    job = submit(seconds=600)
    settle(node)
    job_cancel(job=job, actor=job.owner)
    settle(node)
    job.refresh_from_db()
    assert (job.state, job.promise_outcome, job.void_reason) == (
        JobState.CANCELLED,
        PromiseOutcome.VOID,
        "cancelled",
    )
    assert not Assignment.objects.exclude(state=AssignmentState.RELEASED).exists()


def test_a_paused_job_keeps_its_state(node: SimulatedAgent, submit: Submit) -> None:
    job = submit(seconds=600)
    settle(node)
    job_pause(job=job, actor=job.owner)
    settle(node)
    job.refresh_from_db()
    assert (job.state, job.promise_outcome) == (JobState.SUSPENDED, PromiseOutcome.VOID)
    assert gpus_held(job) == 0
    job_resume(job=job, actor=job.owner)
    settle(node)
    job.refresh_from_db()
    assert job.state == JobState.RUNNING
    assert job.generations.get(state="live", start__contains={"from": "checkpoint"})


def test_a_job_may_span_two_servers(cluster: Cluster, submit: Submit) -> None:
    first, second = SimulatedAgent.enrol("node-1", 4, SPEED), SimulatedAgent.enrol("node-2", 4, SPEED)
    job = submit(seconds=25, iterations=1000)
    settle(first, second)
    job.refresh_from_db()
    assert job.state == JobState.RUNNING
    servers = set(job.assignments.filter(state="held").values_list("gpu__server__name", flat=True))
    assert servers == {"node-1", "node-2"}
