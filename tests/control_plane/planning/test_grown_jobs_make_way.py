"""Growth beyond any promise does not prevent the measurement of a newcomer."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.models import Cluster
from scheduling.api.job_serializers import verdict_of
from scheduling.choices import UNDECIDED_STATES, JobState, Purpose
from scheduling.models import FunctionVersion, Job
from tests.control_plane.simulated_agent import SimulatedAgent, settle_through_slots
from tests.control_plane.simulated_time import let_pass
from tests.factories import FunctionVersionFactory

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


def new_function(version: FunctionVersion) -> FunctionVersion:
    created: FunctionVersion = FunctionVersionFactory.create(function__project=version.function.project)
    return created


def gpus_of(job: Job) -> int:
    return job.assignments.filter(state="held", generation__purpose=Purpose.TRAINING).count()


def on_all_gpus(submit: Submit, node: SimulatedAgent, service_class: str, **fields: float) -> Job:
    job = submit(service_class, **fields)
    settle_through_slots(node)
    job.refresh_from_db()
    assert (job.state, gpus_of(job)) == (JobState.RUNNING, 4)
    return job


@pytest.mark.parametrize("service_class", ["slo", "soft"])
def test_newcomer_is_measured_beside_a_grown_job(
    cluster: Cluster, owned: SimulatedAgent, version: FunctionVersion, submit: Submit, service_class: str
) -> None:
    grown = on_all_gpus(submit, owned, service_class, seconds=7200, iterations=10 * 3600)
    newcomer = submit(seconds=600, iterations=1000, version=new_function(version), measured=False)
    settle_through_slots(owned)
    newcomer.refresh_from_db()
    assert newcomer.promised
    grown.refresh_from_db()
    assert (grown.state, grown.at_risk) == (JobState.RUNNING, False)
    assert grown.events.filter(kind="shrink").exists()
    assert not grown.events.filter(kind="suspending").exists()


def test_job_that_needs_all_gpus_is_not_shrunk(
    cluster: Cluster, owned: SimulatedAgent, version: FunctionVersion, submit: Submit
) -> None:
    needs_all = on_all_gpus(submit, owned, "slo", seconds=1100, iterations=34 * 1000)
    newcomer = submit(seconds=600, iterations=1000, version=new_function(version), measured=False)
    settle_through_slots(owned)
    newcomer.refresh_from_db()
    assert newcomer.state in UNDECIDED_STATES
    assert gpus_of(needs_all) == 4
    assert not needs_all.events.filter(kind__in=["made_way", "shrink"]).exists()


@pytest.mark.slow
def test_a_burst_of_newcomers_shrinks_a_job_once_a_minute(
    cluster: Cluster, owned: SimulatedAgent, version: FunctionVersion, submit: Submit
) -> None:
    grown = on_all_gpus(submit, owned, "slo", seconds=72_000, iterations=10 * 3600)
    waiting = []
    for _ in range(3):
        waiting.append(submit(seconds=3600, iterations=10**9, version=new_function(version), measured=False))
        settle_through_slots(owned)
        let_pass(7)
    assert grown.events.filter(kind="made_way").count() == 1
    verdict = verdict_of(Job.objects.get(pk=waiting[-1].pk))
    assert (verdict.decision, verdict.reason_code) == ("pending", "measuring_turn")

    for _ in range(3):
        let_pass(61)
        owned.report()
        settle_through_slots(owned)
    times = list(grown.events.filter(kind="made_way").order_by("id").values_list("happened_at", flat=True))
    gaps = [(later - earlier).total_seconds() for earlier, later in zip(times, times[1:], strict=False)]
    assert min(gaps) >= 60
    assert grown.events.filter(kind="shrink").count() <= len(times)
    assert not Job.objects.filter(pk__in=[job.pk for job in waiting], state=JobState.SUBMITTED).exists()
    grown.refresh_from_db()
    assert grown.promised
    assert not grown.at_risk
