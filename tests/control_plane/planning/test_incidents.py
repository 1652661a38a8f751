"""One job must not hurt others: extreme inputs, jobs that cannot be planned, passes that fail."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any

import pytest
from django.core.cache import cache
from django.test import Client
from django.utils import timezone
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from rest_framework.test import APIClient

from cluster.models import Cluster
from projects.models import User
from scheduling.choices import AssignmentState, CurveState, GenerationState, JobState, PromiseOutcome
from scheduling.core.question.recording import unpack_snapshot
from scheduling.core.question.snapshot import Snapshot
from scheduling.models import Assignment, CurveLevel, Generation, Incident, Job, Offer, ScalingCurve
from scheduling.policies.punctual import Punctual
from scheduling.selectors.jobs.job_times import planned_finish_at, planned_pieces
from scheduling.services.planning import planning
from scheduling.services.requests.what_if import job_what_if
from scheduling.services.snapshots.snapshots import pool_kinds, pool_snapshot
from scheduling.services.verdicts.incidents import TRY_AGAIN_AFTER
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.factories import UserFactory

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]
CENTURIES = 10**10


@pytest.fixture
def node(cluster: Cluster) -> SimulatedAgent:
    return SimulatedAgent.enrol("node-1", 4, SPEED)


def fresh(job: Job) -> Job:
    return Job.objects.get(pk=job.pk)


def verdict_of(job: Job) -> dict[str, Any]:
    """Return the verdict of a decided job."""
    verdict = fresh(job).verdict
    assert verdict is not None
    return dict(verdict)


def running(submit: Submit, node: SimulatedAgent, **fields: Any) -> Job:
    job = submit("best_effort", iterations=100_000, **fields)
    settle(node)
    assert fresh(job).state == JobState.RUNNING
    return job


def set_speed(job: Job, rate: float, pause: float = 1.0) -> None:
    """Set the speed of the job's function, whatever was measured."""
    curve = fresh(job).curve
    assert curve is not None
    CurveLevel.objects.filter(curve=curve, gpus__gt=1).delete()
    CurveLevel.objects.filter(curve=curve).update(iterations_per_second=rate, pause_seconds=pause)
    ScalingCurve.objects.filter(pk=curve.pk).update(complete=True)  # or it would be measured again


@pytest.fixture
def operator_page() -> Callable[[], str]:
    client = Client()
    client.force_login(UserFactory.create(is_staff=True, is_superuser=True))
    return lambda: str(client.get("/decisions/").content.decode())


@pytest.mark.parametrize("seconds", [pytest.param(None, marks=pytest.mark.slow), 20.0])
def test_job_of_centuries_does_not_stop_planning(
    submit: Submit, node: SimulatedAgent, seconds: float | None
) -> None:
    first = running(submit, node)
    set_speed(first, 0.83)
    endless = submit("best_effort" if seconds is None else "slo", seconds=seconds, iterations=CENTURIES)
    other = submit("slo", seconds=3600.0, iterations=10)
    settle(node)
    assert fresh(other).state in (JobState.ADMITTED, JobState.RUNNING)
    decided = fresh(endless)
    if seconds is None:
        assert verdict_of(decided)["decision"] == "admitted"
    else:
        assert verdict_of(decided)["decision"] == "declined"
        assert not Offer.objects.filter(job=decided).exists()
    assert not Incident.objects.exists()


def test_a_finish_beyond_the_calendar_has_no_date(submit: Submit, node: SimulatedAgent) -> None:
    first = running(submit, node)
    set_speed(first, 0.02)
    endless = submit("best_effort", iterations=CENTURIES)
    settle(node)
    decided = fresh(endless)
    assert verdict_of(decided)["decision"] == "admitted"
    assert verdict_of(decided)["planned_finish_at"] is None
    assert verdict_of(decided)["slack_seconds"] is None
    assert decided.plan is not None
    assert decided.plan["finish_at"] is None
    assert planned_finish_at(decided) is None
    assert planned_pieces(decided) is not None
    person = Client()
    person.force_login(decided.owner)
    for page in ("/", "/jobs/", f"/jobs/{decided.pk}/", "/decisions/"):
        assert person.get(page).status_code == 200
    api = APIClient()
    api.force_login(decided.owner)
    answer = api.get(f"/api/v1/jobs/{decided.pk}/")
    assert answer.status_code == 200
    assert answer.json()["planned_finish_at"] is None
    plan = api.get(f"/api/v1/jobs/{decided.pk}/plan/")
    assert plan.status_code in (200, 404)


@pytest.mark.parametrize(
    "column", ["iterations_per_second", pytest.param("pause_seconds", marks=pytest.mark.slow)]
)
def test_unplannable_job_is_set_aside_and_the_others_go_on(
    submit: Submit, node: SimulatedAgent, version, operator_page: Callable[[], str], column: str
) -> None:
    faulty = running(submit, node)
    gpus = set(
        Assignment.objects.filter(job=faulty, state=AssignmentState.HELD).values_list("gpu_id", flat=True)
    )
    wrong = {"iterations_per_second": 1e-30} if column == "iterations_per_second" else {"pause_seconds": 1e15}
    CurveLevel.objects.filter(curve=fresh(faulty).curve).update(**wrong)
    other = submit("best_effort", iterations=10, version=another(version))
    newcomer = submit("best_effort", iterations=10)  # of the same function, on the same curve
    settle(node)

    incident = Incident.objects.get(job=faulty)
    assert incident.kind == Incident.Kind.UNPLANNABLE
    assert ("rate" if column == "iterations_per_second" else "pause") in incident.message
    assert faulty.events.filter(kind="set_aside").count() == 1
    # It continues training, and no other job gets its GPUs.
    assert fresh(faulty).state == JobState.RUNNING
    assert Generation.objects.filter(job=faulty, state=GenerationState.LIVE).exists()
    others = Assignment.objects.exclude(job=faulty).exclude(state=AssignmentState.RELEASED)
    assert not gpus & set(others.values_list("gpu_id", flat=True))
    # A newcomer of the same function is declined at once.
    assert fresh(newcomer).state == JobState.DECLINED
    assert verdict_of(newcomer)["reason_code"] == "cannot_be_planned"
    assert fresh(other).state != JobState.DECLINED
    assert faulty.name in operator_page()
    assert "Job set aside" in operator_page()
    assert 'punctual_incidents_open{kind="unplannable"} 1.0' in scraped()

    set_speed(faulty, 10.0, 1.0)
    Cluster.objects.update(planned_version=0)
    settle(node)
    incident.refresh_from_db()
    assert incident.resolved_at is not None
    assert faulty.events.filter(kind="planned_again").exists()


def another(version):
    from tests.factories import FunctionVersionFactory

    return FunctionVersionFactory.create(function__project=version.function.project)


def scraped() -> str:
    operator = User.objects.filter(is_superuser=True).first() or UserFactory.create(
        is_staff=True, is_superuser=True
    )
    client = Client()
    client.force_login(operator)
    answer = client.get("/metrics")
    assert answer.status_code == 200
    return answer.content.decode()


def test_job_that_gets_gpus_during_a_read_is_planned(submit: Submit, node: SimulatedAgent) -> None:
    job = running(submit, node)
    # Earlier assignments, as of its measurement, would hide the age of the present ones.
    Assignment.objects.filter(job=job).exclude(state=AssignmentState.HELD).delete()
    held_at = Assignment.objects.filter(job=job).earliest("held_at").held_at
    assert held_at is not None
    (kind,) = pool_kinds(Cluster.objects.get())
    pool = pool_snapshot(Cluster.objects.get(), kind, held_at - timedelta(milliseconds=20))
    assert pool.unplannable == {}
    (read,) = pool.snapshot.jobs
    assert (read.id, read.attained_gpu_seconds) == (job.pk, 0.0)


def test_a_promised_job_that_is_set_aside_is_at_risk(submit: Submit, node: SimulatedAgent) -> None:
    running(submit, node)
    promised = submit("slo", seconds=3600.0, iterations=1000)
    settle(node)
    assert fresh(promised).promise_outcome == PromiseOutcome.OPEN
    Job.objects.filter(pk=promised.pk).update(plan={"start": ["soon"]})
    Cluster.objects.update(planned_version=0)
    settle(node)
    assert fresh(promised).at_risk
    assert "its rows cannot be read" in Incident.objects.get(job=promised).message


def test_a_job_that_breaks_every_plan_is_found_and_left_out(
    submit: Submit, node: SimulatedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    running(submit, node)
    real = Punctual.problem_of

    def fails_with_the_culprit(self: Punctual, snapshot: Snapshot) -> Any:
        if any(job.id == culprit.pk for job in snapshot.jobs):
            raise ZeroDivisionError("float division by zero")
        return real(self, snapshot)

    others = [submit("best_effort", iterations=10) for _ in range(5)]
    culprit = submit("slo", seconds=600.0, iterations=10)
    others += [submit("slo", seconds=3600.0, iterations=10) for _ in range(2)]
    monkeypatch.setattr(Punctual, "problem_of", fails_with_the_culprit)
    planning.run_planner("test")
    assert all(verdict_of(job)["decision"] == "admitted" for job in others)
    declined = fresh(culprit)
    assert verdict_of(declined)["reason_code"] == "cannot_be_planned"
    incident = Incident.objects.get(job=culprit)
    assert incident.kind == Incident.Kind.BREAKS_PLANS
    assert culprit.pk in {job.id for job in unpack_snapshot(bytes(incident.snapshot or b"")).jobs}


def test_running_job_that_breaks_plans_is_left_out_for_a_while(
    submit: Submit, node: SimulatedAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    culprit = running(submit, node)
    real, planned_jobs = Punctual.problem_of, []

    def fails_with_the_culprit(self: Punctual, snapshot: Snapshot) -> Any:
        planned_jobs.append({job.id for job in snapshot.jobs})
        if culprit.pk in planned_jobs[-1]:
            raise IndexError("index 7 is out of bounds")
        return real(self, snapshot)

    with monkeypatch.context() as patched:
        patched.setattr(Punctual, "problem_of", fails_with_the_culprit)
        other = submit("best_effort", iterations=10)
        planning.run_planner("test")
        assert verdict_of(other)["decision"] == "admitted"
        planned_jobs.clear()
        submit("best_effort", iterations=10)
        planning.run_planner("test")
        assert all(culprit.pk not in jobs for jobs in planned_jobs), "it was tried again at once"
    incident = Incident.objects.get(job=culprit)
    assert (incident.count, incident.resolved_at) == (1, None)
    assert fresh(culprit).state == JobState.RUNNING
    long_ago = timezone.now() - TRY_AGAIN_AFTER - timedelta(seconds=1)
    Incident.objects.filter(pk=incident.pk).update(last_at=long_ago)
    Cluster.objects.update(planned_version=0)
    planning.run_planner("test")
    incident.refresh_from_db()
    assert incident.resolved_at is not None


def test_a_pass_that_fails_is_shown_and_counted_until_one_succeeds(
    submit: Submit, node: SimulatedAgent, monkeypatch: pytest.MonkeyPatch, operator_page: Callable[[], str]
) -> None:
    running(submit, node)
    submit("best_effort", iterations=10)

    def always(self: Punctual, snapshot: Snapshot) -> Any:
        raise ZeroDivisionError("nothing works")

    with monkeypatch.context() as patched:
        patched.setattr(Punctual, "problem_of", always)
        for _ in range(2):
            with pytest.raises(ZeroDivisionError):
                planning.run_planner("test")
    incident = Incident.objects.get()
    assert (incident.kind, incident.job, incident.count) == (Incident.Kind.PASS_FAILED, None, 2)
    assert "test_incidents" in incident.detail
    assert "ZeroDivisionError: nothing works" in operator_page()
    assert "punctual_planner_failed_passes_total 2.0" in scraped()
    assert 'punctual_incidents_open{kind="pass_failed"} 1.0' in scraped()
    planning.run_planner("test")
    incident.refresh_from_db()
    assert incident.resolved_at is not None
    assert 'punctual_incidents_open{kind="pass_failed"} 0.0' in scraped()


def test_members_see_only_incidents_of_their_own_jobs(submit: Submit, node: SimulatedAgent) -> None:
    job = submit("best_effort", iterations=10)
    Incident.objects.create(cluster=job.cluster, job=job, kind="unplannable", message="about this job")
    Incident.objects.create(
        cluster=job.cluster, kind="pass_failed", message="a secret", detail="of operators"
    )
    for person, sees in ((job.owner, True), (UserFactory.create(), False)):
        client = Client()
        client.force_login(person)
        text = client.get("/decisions/").content.decode()
        assert ("about this job" in text) == sees
        assert "a secret" not in text


def extreme(low: int, high: int) -> st.SearchStrategy[Any]:
    beyond = st.sampled_from(
        [0, -1, 2**31, 2**53, 2**63, 10**18, 10**30, 1e300, "12", None, True, 0.5, 1e-300]
    )
    return st.one_of(st.integers(low, high), st.sampled_from([low, high, high + 1]), beyond)


@settings(suppress_health_check=list(HealthCheck), database=None)
@given(data=st.data())
def test_a_pass_succeeds_after_any_posted_numbers(
    submit: Submit, node: SimulatedAgent, version, data: st.DataObject
) -> None:
    if not Job.objects.filter(state=JobState.RUNNING).exists():
        running(submit, node)
    cache.clear()  # the throttle's counters: this test is about other limits
    measured_job = Job.objects.order_by("submitted_at").first()
    assert measured_job is not None
    assert measured_job.curve is not None
    assert measured_job.curve.state == CurveState.READY
    api = APIClient(raise_request_exception=True)
    api.force_login(measured_job.owner)
    body: dict[str, Any] = {
        "function": f"{version.function.name}@{version.number}",
        "project": version.function.project.name,
        "hyperparameters": {"global_batch_size": data.draw(st.one_of(st.just(64), extreme(1, 2**31 - 1)))},
        "termination": {"max_iterations": data.draw(extreme(1, CENTURIES))},
        "checkpoint_seconds": data.draw(st.one_of(st.just(60), extreme(1, 86_400))),
        "seed": data.draw(st.one_of(st.just(0), extreme(0, 2**31 - 1))),
    }
    if data.draw(st.booleans()):
        body["deadline_seconds"] = data.draw(extreme(1, 315_360_000))
    what_if = api.post("/api/v1/what-if/", body, format="json")
    answer = api.post("/api/v1/jobs/", body, format="json")
    assert (what_if.status_code, answer.status_code) in ((200, 201), (400, 400)), (
        what_if.content,
        answer.content,
    )
    if answer.status_code == 400:
        assert answer["Content-Type"].startswith("application/problem+json")
        assert answer.json()["errors"]
        return
    planning.run_planner("test")
    assert not Incident.objects.exists()
    Job.objects.filter(pk=answer.json()["id"]).delete()


def test_work_beyond_the_longest_run_is_refused_with_a_reason(
    submit: Submit, node: SimulatedAgent, version
) -> None:
    from scheduling.services.requests.jobs import request_of

    first = running(submit, node)
    set_speed(first, 1e-5)
    request = request_of(first)
    request = type(request)(**{**request.__dict__, "max_iterations": CENTURIES})
    verdict = job_what_if(project=first.project, request=request)
    assert verdict.reason_code == "cannot_be_planned"
    assert "its work would take over" in verdict.reason
