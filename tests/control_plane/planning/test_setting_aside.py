"""Jobs for which no plan can be computed are set aside in any request, and all others continue."""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import timedelta
from math import inf
from typing import Any

import pytest
from django.utils import timezone

from cluster.models import Cluster
from projects.errors import Unavailable
from scheduling.choices import AssignmentState, JobState, OfferState
from scheduling.core.question.decision import Decision
from scheduling.core.question.snapshot import Snapshot
from scheduling.models import Assignment, Generation, Incident, Job, Offer
from scheduling.policies import Policy
from scheduling.policies.punctual import Punctual
from scheduling.services.agents.drain import server_drain
from scheduling.services.planning import planning
from scheduling.services.requests.jobs import job_pause, job_resume, request_of
from scheduling.services.requests.what_if import job_change_deadline, job_what_if
from scheduling.services.snapshots.snapshots import pool_snapshot
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import KIND, SimulatedAgent, settle
from tests.factories import FunctionVersionFactory, ScalingCurveFactory

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]
Breaks = Callable[[Callable[[str], bool]], None]


@pytest.fixture
def node(cluster: Cluster) -> SimulatedAgent:
    return SimulatedAgent.enrol("node-1", 4, SPEED)


@pytest.fixture
def breaks(monkeypatch: pytest.MonkeyPatch) -> Breaks:
    """Make planning fail for snapshots that contain one of these jobs."""

    def break_with(culprits: Callable[[str], bool]) -> None:
        real = Punctual.problem_of

        def fails(self: Punctual, snapshot: Snapshot) -> Any:
            if any(culprits(job.id) for job in snapshot.jobs):
                raise RecursionError("maximum recursion depth exceeded")
            return real(self, snapshot)

        monkeypatch.setattr(Punctual, "problem_of", fails)

    return break_with


@pytest.fixture(autouse=True)
def patient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Lift the time limit of the search, so that results do not depend on the machine."""
    monkeypatch.setattr(planning, "SETTING_ASIDE_SECONDS", inf)


@pytest.fixture
def one_step(patient: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """End a pass after it has set a job aside."""
    monkeypatch.setattr(planning, "SETTING_ASIDE_SECONDS", 0.0)


def fresh(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def among(jobs: Collection[Job]) -> Callable[[str], bool]:
    names = {job.pk for job in jobs}
    return lambda job_id: job_id in names


def verdict_values(jobs: Collection[Job], key: str) -> set[Any]:
    """Return the values of a field in these jobs' verdicts."""
    return {(fresh(job).verdict or {}).get(key) for job in jobs}


def running(submit: Submit, node: SimulatedAgent, service_class: str = "best_effort", **fields: Any) -> Job:
    job = submit(service_class, iterations=100_000, **fields)
    settle(node)
    assert fresh(job).state == JobState.RUNNING
    return fresh(job)


def test_other_jobs_are_decided_beside_many_that_break_plans(
    submit: Submit, node: SimulatedAgent, breaks: Breaks, one_step: None
) -> None:
    running(submit, node)
    culprits, others = [], []
    for _ in range(7):
        culprits.append(submit("best_effort", iterations=10))
        curve = ScalingCurveFactory.create(gpu_kind=KIND, levels=SPEED)
        Job.objects.filter(pk=culprits[-1].pk).update(curve=curve)
        others.append(submit("best_effort", iterations=10))
    breaks(among(culprits))
    for count in range(1, 8):
        planning.run_planner("test")
        assert Incident.objects.filter(kind=Incident.Kind.BREAKS_PLANS).count() == count
    planning.run_planner("test")
    assert verdict_values(others, "decision") == {"admitted"}
    assert verdict_values(culprits, "reason_code") == {"cannot_be_planned"}
    assert not Incident.objects.filter(kind=Incident.Kind.PASS_FAILED).exists()


def test_jobs_of_a_function_that_breaks_plans_are_set_aside_together(
    submit: Submit, node: SimulatedAgent, breaks: Breaks, one_step: None
) -> None:
    innocent = running(submit, node)
    culprits = [submit("best_effort", iterations=10) for _ in range(7)]
    breaks(among(culprits))
    planning.run_planner("test")
    assert verdict_values(culprits, "reason_code") == {"cannot_be_planned"}
    assert not Incident.objects.filter(job=innocent).exists(), "a job with the same curve is not at fault"


def test_gpus_of_a_job_set_aside_are_not_promised(
    submit: Submit, node: SimulatedAgent, breaks: Breaks
) -> None:
    culprit = running(submit, node)
    assignments = Assignment.objects.filter(job=culprit, state=AssignmentState.HELD)
    assert assignments.count() == 4, "the job holds the whole cluster"
    newcomer = submit("slo", seconds=600.0, iterations=100)
    breaks(among([culprit]))
    planning.run_planner("test")
    assert verdict_values([newcomer], "decision") == {"declined"}
    assert not fresh(newcomer).promised
    assert assignments.count() == 4
    assert fresh(culprit).state == JobState.RUNNING


def test_resumed_job_that_breaks_plans_is_set_aside_before_decisions(
    submit: Submit, node: SimulatedAgent, breaks: Breaks, one_step: None
) -> None:
    resumed = running(submit, node, "slo", seconds=36_000.0)
    job_pause(job=resumed, actor=resumed.owner)
    job_resume(job=fresh(resumed), actor=resumed.owner)
    for _ in range(3):
        node.report()
        node.obey()
    assert fresh(resumed).promise_asked_again
    other = submit("best_effort", iterations=10)
    breaks(among([resumed]))
    for _ in range(2):
        planning.run_planner("test")
    assert Incident.objects.get(job=resumed).kind == Incident.Kind.BREAKS_PLANS
    assert verdict_values([other], "decision") == {"admitted"}
    assert fresh(resumed).promise_asked_again, "the promise is decided once the job is planned again"


def test_requests_that_need_a_plan_are_unavailable_without_one(
    submit: Submit, node: SimulatedAgent, breaks: Breaks
) -> None:
    job = running(submit, node, "slo", seconds=3_600.0)
    sooner = timezone.now() + timedelta(seconds=3_000)
    breaks(among([job]))
    with pytest.raises(Unavailable, match="RecursionError"):
        job_change_deadline(job=job, actor=job.owner, deadline_at=sooner)
    with pytest.raises(Unavailable, match="RecursionError"):
        job_what_if(project=job.project, request=request_of(job))
    with pytest.raises(Unavailable, match="RecursionError"):
        server_drain(server=node.agent.server, actor=job.owner)
    server = server_drain(server=node.agent.server, actor=job.owner, force=True)
    assert server.drain == "draining", "an operator who forces it need not wait for a plan"


def test_what_if_declines_a_job_that_breaks_plans(
    submit: Submit, node: SimulatedAgent, breaks: Breaks
) -> None:
    job = running(submit, node, "slo", seconds=3_600.0)
    breaks(lambda job_id: job_id != job.pk)
    answer = job_what_if(project=job.project, request=request_of(job))
    assert (answer.decision, answer.reason_code) == ("declined", "cannot_be_planned")
    assert "RecursionError" in answer.reason


def test_failed_promise_check_prevents_a_measurement_but_not_the_pass(
    submit: Submit, node: SimulatedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(policy: Policy, snapshot: Snapshot) -> Decision:
        if not snapshot.blocked:
            raise ValueError("range() arg 3 must not be zero")
        return replan(policy, snapshot)

    Cluster.objects.update(replanned_at=timezone.now(), replan_seconds=3_600.0)
    replan = Policy.replan
    job = submit("slo", seconds=600.0, iterations=100, measured=False)
    Cluster.objects.update(planned_version=Cluster.objects.get().planning_version)
    monkeypatch.setattr(Policy, "replan", broken)
    planning.run_planner("test")
    assert Incident.objects.get(job=job).kind == Incident.Kind.NOT_MEASURED
    assert not Generation.objects.filter(job=job).exists()


def test_only_the_unreadable_offer_is_left_out(submit: Submit, node: SimulatedAgent, version: Any) -> None:
    running(submit, node, "slo", seconds=7_200.0)
    offers = []
    for _ in range(2):
        other = FunctionVersionFactory.create(function__project=version.function.project)
        job = submit("slo", seconds=1.0, iterations=3_400, version=other)
        Job.objects.filter(pk=job.pk).update(curve=ScalingCurveFactory.create(gpu_kind=KIND, levels=SPEED))
        offers.append(
            Offer.objects.create(
                job=job,
                project=FunctionVersionFactory.create().function.project,
                deadline_at=timezone.now() + timedelta(hours=1),
                plan={"start": [0.0], "end": [1.0], "gpus": [1], "finish_at": 1.0},
                state=OfferState.OPEN,
                valid_until=timezone.now() + timedelta(minutes=1),
            )
        )
    Offer.objects.filter(pk=offers[0].pk).update(plan={"start": ["soon"]})
    offers_held = pool_snapshot(Cluster.objects.get(), KIND, timezone.now()).snapshot.held_offers
    assert [offer.job.id for offer in offers_held if offer.job] == [offers[1].job_id]
