"""A project's daily measuring quota: what counts, and the immediate refusal beyond it."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from django.utils import timezone

from cluster.models import Cluster
from projects.models import Project, Quota
from scheduling.api.job_serializers import verdict_of
from scheduling.models import FunctionVersion, Generation, Incident, Job
from scheduling.services.agents.leases import expire_leases
from scheduling.services.planning.planning import run_planner
from scheduling.services.requests.lateness import decline_overdue
from scheduling.services.verdicts.quotas import profiling_refusal
from tests.control_plane.simulated_time import let_pass
from tests.factories import FunctionFactory, FunctionVersionFactory

pytestmark = pytest.mark.usefixtures("owned")


@pytest.fixture
def curves_known() -> bool:
    return False


@pytest.fixture
def project(submit: Callable[..., Job]) -> Project:
    """A project with a function that is being measured."""
    job = submit(seconds=3600)
    run_planner()
    assert Generation.objects.get(purpose="profiling").held_at is not None
    return job.project


def another(project: Project) -> FunctionVersion:
    created: FunctionVersion = FunctionVersionFactory.create(function=FunctionFactory.create(project=project))
    return created


def limit(project: Project, seconds: float) -> None:
    Quota.objects.update_or_create(project=project, defaults={"profiling_seconds_per_day": seconds})


def test_time_in_which_the_platform_was_stopped_is_not_measured(cluster: Cluster, project: Project) -> None:
    limit(project, 30)
    expire_leases()
    let_pass(2_000)
    assert profiling_refusal(project, timezone.now()) is None
    for _ in range(6):
        assert profiling_refusal(project, timezone.now()) is None
        expire_leases()
        let_pass(5)
    assert profiling_refusal(project, timezone.now()) is not None


def test_a_quota_that_is_used_up_is_named_at_once(
    cluster: Cluster, project: Project, submit: Callable[..., Job]
) -> None:
    limit(project, 0)
    other = submit(seconds=3600, version=another(project))
    let_pass(1)
    run_planner()
    refusal = f"Project {project.name} measured functions for 1 s within a day; the limit is 0 s"
    assert verdict_of(Job.objects.get(pk=other.pk)).reason.startswith(f"Not measured yet: {refusal}")
    (incident,) = Incident.objects.filter(kind="no_quota", resolved_at=None)
    assert (incident.job_id, incident.message.startswith(refusal)) == (other.pk, True)
    assert other.events.filter(kind="no_quota", message__contains=refusal).count() == 1
    run_planner()
    assert other.events.filter(kind="no_quota").count() == 1

    let_pass(1801)
    decline_overdue(cluster, timezone.now(), 10)
    assert refusal in verdict_of(Job.objects.get(pk=other.pk)).reason


def test_once_there_is_quota_again_nothing_is_left_of_it(
    cluster: Cluster, project: Project, submit: Callable[..., Job]
) -> None:
    limit(project, 0)
    other = submit(seconds=3600, version=another(project))
    let_pass(1)
    run_planner()
    limit(project, 3600)
    let_pass(1)
    run_planner()
    assert verdict_of(Job.objects.get(pk=other.pk)).reason_code != "quota"
    assert not Incident.objects.filter(kind="no_quota", resolved_at=None).exists()
