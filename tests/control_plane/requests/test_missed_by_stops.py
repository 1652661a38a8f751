"""Promises missed because the platform was stopped: each job records it, and one incident lists all."""

from __future__ import annotations

from datetime import timedelta
from io import StringIO
from typing import Any

import pytest
from django.core.management import call_command
from django.utils import timezone

from cluster.models import Cluster
from projects.models import User
from scheduling.choices import JobState, PromiseOutcome
from scheduling.models import Incident, Job
from scheduling.selectors.cluster.cluster_summary import promises_by_outcome, promises_in_danger
from scheduling.selectors.jobs.overview import promise_counts, tiles
from scheduling.selectors.jobs.standing import standing
from scheduling.services.agents.leases import expire_leases
from scheduling.services.requests.lateness import mark_late
from tests import factories as make
from tests.control_plane.simulated_time import let_pass

pytestmark = pytest.mark.django_db
STOPPED = "2026-03-02 12:00 to 12:15 UTC"


def promised_job(cluster: Cluster, *, deadline: float, finish: float, **fields: Any) -> Job:
    """Return a job with its deadline and planned finish this many seconds away."""
    now = timezone.now()
    job: Job = make.JobFactory.create(
        cluster=cluster,
        state=JobState.RUNNING,
        service_class="slo",
        promised=True,
        decided_at=now,
        deadline_at=now + timedelta(seconds=deadline),
        plan={"start": [], "end": [], "gpus": [], "finish_at": now.timestamp() + finish},
        **{"promise_outcome": PromiseOutcome.OPEN, **fields},
    )
    return job


def stop_the_platform(seconds: float = 900.0) -> None:
    expire_leases()
    let_pass(seconds)


def mark(cluster: Cluster) -> None:
    """Run the first pass after a start, before and after the first lease check."""
    mark_late(cluster, timezone.now(), 1)
    let_pass(1)
    expire_leases()
    mark_late(cluster, timezone.now(), 100)


def test_misses_by_one_stop_stand_in_one_incident(cluster: Cluster) -> None:
    jobs = [promised_job(cluster, deadline=600 + i, finish=300) for i in range(3)]
    stop_the_platform()
    mark(cluster)
    incident = Incident.objects.get()
    assert (incident.kind, incident.job, incident.count) == ("stopped", None, 3)
    assert incident.message == f"Promises were missed because the platform was stopped {STOPPED}"
    assert incident.detail.splitlines() == [f"{job.pk} {job.name}" for job in jobs]
    assert incident.resolved_at is not None
    for job in Job.objects.all():
        assert f"The platform was stopped {STOPPED}." in job.events.get(kind="late").message
        assert f"The platform was stopped {STOPPED}." in standing(job, timezone.now()).text


def test_a_miss_after_the_start_is_the_stops_too(cluster: Cluster) -> None:
    job = promised_job(cluster, deadline=1000, finish=300)
    stop_the_platform()
    expire_leases()
    job.plan = {**(job.plan or {}), "finish_at": job.submitted_at.timestamp() + 1200}
    job.save(update_fields=["plan"])
    let_pass(101)
    mark(cluster)
    assert Incident.objects.get().count == 1


@pytest.mark.parametrize(
    ("deadline", "finish"),
    [
        pytest.param(600, 600 + 901, id="it was later than the stop took"),
        pytest.param(-1, -2, id="its deadline had passed before"),
    ],
)
def test_a_miss_that_no_stop_caused_names_none(cluster: Cluster, deadline: float, finish: float) -> None:
    job = promised_job(cluster, deadline=deadline, finish=finish)
    stop_the_platform()
    mark(cluster)
    assert not Incident.objects.exists()
    assert "stopped" not in job.events.get(kind="late").message
    job.refresh_from_db()
    assert "stopped" not in standing(job, timezone.now()).text


def test_a_late_promise_of_a_running_job_counts_as_missed(cluster: Cluster) -> None:
    """The overview must not show `1 late` beside `Missed 0`."""
    promised_job(cluster, deadline=600, finish=300, at_risk=True)
    promised_job(cluster, deadline=6000, finish=300)
    operator: User = make.UserFactory.create(is_operator=True)
    let_pass(900)
    mark_late(cluster, timezone.now(), 100)
    counts = promise_counts(operator, timezone.now() - timedelta(days=1))
    shown = tiles(operator)
    assert (counts.missed, counts.open, counts.at_risk) == (1, 1, 0)
    assert (shown.late, shown.open_promises, shown.at_risk) == (1, 1, 0)
    assert (promises_by_outcome()["missed"], promises_in_danger()) == (1, {"at_risk": 0, "late": 1})


def test_a_late_job_without_a_promise_is_no_late_promise(cluster: Cluster) -> None:
    job = promised_job(cluster, deadline=600, finish=300)
    Job.objects.filter(pk=job.pk).update(promised=False, promise_outcome=PromiseOutcome.NONE)
    operator: User = make.UserFactory.create(is_operator=True)
    let_pass(900)
    mark_late(cluster, timezone.now(), 100)
    assert Job.objects.get().late
    assert (tiles(operator).late, promises_in_danger()["late"]) == (0, 0)


def test_a_stop_names_open_promises_with_their_time_to_spare(cluster: Cluster) -> None:
    def named() -> list[str]:
        call_command("open_promises", stdout=(output := StringIO()))
        return output.getvalue().splitlines()

    promised_job(cluster, deadline=60, finish=30, promise_outcome=PromiseOutcome.MISSED)
    assert named() == []
    ample = promised_job(cluster, deadline=6000, finish=300)
    tight = promised_job(cluster, deadline=600, finish=530)
    late = promised_job(cluster, deadline=600, finish=700)
    soon, later = "2026-03-02 12:10:00 UTC", "2026-03-02 13:40:00 UTC"
    assert named()[1:] == [
        f"  {late.pk} {late.name}: deadline {soon}, needed again at once: there is no time to spare",
        f"  {tight.pk} {tight.name}: deadline {soon}, needed again within 1 min 10 s",
        f"  {ample.pk} {ample.name}: deadline {later}, needed again within 1 h 35 min",
    ]
    for _ in range(10):
        promised_job(cluster, deadline=9000, finish=300)
    assert named()[11:] == ["  and 3 more with more time to spare"]
