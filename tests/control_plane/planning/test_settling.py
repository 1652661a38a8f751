"""Time limits are settled in batches, so that a pass stays short for any number of jobs."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta
from typing import Any
from unittest.mock import patch

import pytest
from django.db import connection
from django.test.utils import CaptureQueriesContext
from django.utils import timezone

from cluster.models import Cluster
from scheduling.choices import CurveState, JobState, PromiseOutcome, Purpose, ServiceClass
from scheduling.models import Environment, Generation, Job, JobEvent, ScalingCurve
from scheduling.services.planning import planning
from scheduling.services.planning.planning import MOST_SETTLED, run_planner
from tests.control_plane.simulated_agent import KIND, SimulatedAgent
from tests.factories import JobFactory, ScalingCurveFactory

pytestmark = pytest.mark.django_db(transaction=True)

MANY = MOST_SETTLED + 30
#: Limit on the statements of a pass: too few for one statement per job.
STATEMENTS = 180


@pytest.fixture
def many(cluster: Cluster, owned: SimulatedAgent) -> Callable[..., list[Job]]:
    """Return a function that submits this many jobs of one function, which is not measured yet."""

    def submitted(count: int = MANY, **fields: Any) -> list[Job]:
        curve = ScalingCurveFactory.create(
            gpu_kind=KIND, levels={}, state=fields.pop("curve_state", CurveState.UNKNOWN), complete=False
        )
        first = JobFactory.create(cluster=cluster, curve=curve, state=JobState.CANCELLED)
        common = {"owner": first.owner, "project": first.project, "function_version": first.function_version}
        chosen = {"state": JobState.PROFILING, "service_class": ServiceClass.BEST_EFFORT, "deadline_at": None}
        return [
            JobFactory.create(cluster=cluster, curve=curve, **common, **{**chosen, **fields})
            for _ in range(count)
        ]

    return submitted


def states() -> dict[str, int]:
    job_states = Job.objects.exclude(state=JobState.CANCELLED).values_list("state", flat=True)
    return {state: list(job_states).count(state) for state in set(job_states)}


def one_pass() -> bool:
    """Run one pass in few statements; return whether it requested another pass."""
    with patch.object(planning, "wake") as woken, CaptureQueriesContext(connection) as captured:
        run_planner("test")
    assert len(captured) < STATEMENTS
    return any(call.kwargs.get("trigger") == "more jobs are to be settled" for call in woken.call_args_list)


def test_jobs_of_an_unmeasurable_function_fail_in_batches(many: Callable[..., list[Job]]) -> None:
    jobs = many(curve_state=CurveState.FAILED)
    ScalingCurve.objects.update(failure="ValueError: no")
    assert one_pass(), "another pass is requested for the other jobs"
    assert states() == {JobState.FAILED: MOST_SETTLED, JobState.PROFILING: MANY - MOST_SETTLED}
    assert not one_pass()
    assert states() == {JobState.FAILED: MANY}
    job = Job.objects.get(pk=jobs[-1].pk)
    assert job.failure is not None
    assert job.failure["reason"] == "function_load_error"
    assert "ValueError: no" in job.failure["message"]
    assert job.decided_at is not None
    assert job.finished_at is not None
    assert JobEvent.objects.filter(kind=JobState.FAILED).count() == MANY


def test_jobs_with_uninstallable_requirements_fail_in_batches(
    many: Callable[..., list[Job]],
) -> None:
    jobs = many()
    version = jobs[0].function_version
    version.requirements_digest = "e" * 64
    version.save()
    now = timezone.now()
    Environment.objects.create(
        digest="e" * 64, requirements="x", state="failed", log="no such package", finished_at=now
    )
    assert one_pass()
    assert not one_pass()
    failures = {(job.failure or {})["reason"]: (job.failure or {})["traceback"] for job in Job.objects.filter(
        state=JobState.FAILED
    )}  # fmt: skip
    assert failures == {"environment_failed": "no such package"}
    assert states() == {JobState.FAILED: MANY}


def test_jobs_not_measured_in_time_are_declined_in_batches(
    many: Callable[..., list[Job]],
) -> None:
    now = timezone.now()
    common = {"service_class": ServiceClass.SLO, "submitted_at": now - timedelta(hours=1)}
    many(**common, deadline_at=now + timedelta(minutes=59))
    early = many(3, **common, deadline_at=now + timedelta(minutes=70))
    assert one_pass()
    assert states()[JobState.DECLINED] == MOST_SETTLED
    assert not one_pass()
    assert states()[JobState.DECLINED] == MANY
    assert {Job.objects.get(pk=job.pk).state for job in early} == {JobState.PROFILING}
    declined = Job.objects.filter(state=JobState.DECLINED).latest("pk")
    assert (declined.verdict or {})["reason_code"] == "not_profiled_in_time"


def test_jobs_become_late_in_batches(many: Callable[..., list[Job]]) -> None:
    now = timezone.now()
    many(
        state=JobState.SUSPENDED,
        paused_by_owner=True,
        service_class=ServiceClass.SLO,
        deadline_at=now - timedelta(seconds=1),
        promise_outcome=PromiseOutcome.OPEN,
    )
    run_planner("test")
    assert Job.objects.filter(late=True, promise_outcome=PromiseOutcome.MISSED).count() == MOST_SETTLED
    run_planner("test")
    assert Job.objects.filter(late=True, promise_outcome=PromiseOutcome.MISSED).count() == MANY
    assert JobEvent.objects.filter(kind="late").count() == MANY


def test_jobs_waiting_for_one_measurement_are_profiling_at_once(
    many: Callable[..., list[Job]],
) -> None:
    many(state=JobState.SUBMITTED)
    one_pass()
    assert Generation.objects.filter(purpose=Purpose.PROFILING).count() == 1
    assert states() == {JobState.PROFILING: MANY}
    assert JobEvent.objects.filter(kind=JobState.PROFILING).count() == MANY
