"""New functions that arrive one after the other do not suspend a running job each time."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.models import Cluster
from scheduling.api.job_serializers import verdict_of
from scheduling.choices import JobState
from scheduling.models import FunctionVersion, Job, JobEvent
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.control_plane.simulated_time import let_pass
from tests.factories import FunctionVersionFactory

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


def new_function(version: FunctionVersion) -> FunctionVersion:
    created: FunctionVersion = FunctionVersionFactory.create(function__project=version.function.project)
    return created


def suspensions(job: Job) -> list[JobEvent]:
    return list(job.events.filter(kind="suspending").order_by("id"))


def test_new_functions_suspend_a_job_once_a_minute_in_sum(
    cluster: Cluster, owned: SimulatedAgent, version: FunctionVersion, submit: Submit
) -> None:
    running = submit("best_effort", iterations=1_000_000)
    settle(owned)
    waiting = []
    for _ in range(3):
        waiting.append(submit(seconds=3600, iterations=10**9, version=new_function(version), measured=False))
        settle(owned)
        let_pass(7)
    assert len(suspensions(running)) == 1
    verdict = verdict_of(Job.objects.get(pk=waiting[-1].pk))
    assert (verdict.decision, verdict.reason_code) == ("pending", "measuring_turn")
    assert "made way for another measurement" in verdict.reason

    for _ in range(3):
        let_pass(61)
        settle(owned)
    times = [event.happened_at for event in suspensions(running)]
    gaps = [(later - earlier).total_seconds() for earlier, later in zip(times, times[1:], strict=False)]
    assert min(gaps) >= 60
    assert not Job.objects.filter(pk__in=[job.pk for job in waiting], state=JobState.SUBMITTED).exists()
    assert not Job.objects.filter(verdict__reason_code="measuring_turn").exists()
