"""Changes that take longer than charged: new promises keep slack for them, and endless ones are ended."""

from __future__ import annotations

from collections.abc import Callable
from datetime import timedelta

import pytest
from django.db import transaction
from django.utils import timezone

from cluster.models import Cluster
from scheduling.choices import GenerationState, JobState, Purpose
from scheduling.models import Generation, Job, PlannerPass
from scheduling.services.agents.leases import reconcile
from scheduling.services.generations.lifecycle import suspend
from scheduling.services.planning.planning import run_planner
from scheduling.services.rows.records import lock_cluster
from scheduling.services.snapshots import change_times
from scheduling.services.snapshots.change_times import MOST_PASS_SECONDS, MOST_SECONDS, change_slack_seconds
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.control_plane.simulated_time import SimulatedTime
from tests.factories import ProjectFactory

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


def running(submit: Submit, node: SimulatedAgent) -> Job:
    job = submit("best_effort", iterations=1_000_000)
    settle(node)
    job.refresh_from_db()
    assert job.state == JobState.RUNNING
    return job


def took(job: Job, seconds: float) -> None:
    """Set the time from the plan to the job's first iteration."""
    for generation in job.generations.filter(purpose=Purpose.TRAINING, live_at__isnull=False):
        assert generation.live_at is not None
        Generation.objects.filter(pk=generation.pk).update(
            created_at=generation.live_at - timedelta(seconds=seconds)
        )


def decide(job: Job) -> Job:
    run_planner("test")
    job.refresh_from_db()
    return job


@pytest.mark.parametrize(
    ("late", "seconds", "promised"),
    [pytest.param(0, 45, True, marks=pytest.mark.slow), (30, 45, False), (30, 75, True)],
)
def test_new_promises_keep_slack_for_recent_late_starts(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, late: float, seconds: float, promised: bool
) -> None:
    """29.4 s of work on four GPUs and a charged pause of one second."""
    took(running(submit, owned), 1.0 + late)
    assert change_slack_seconds(cluster, timezone.now()) == pytest.approx(late)
    assert decide(submit(seconds=seconds, iterations=1000)).promised == promised


def test_slower_starts_put_no_present_promise_at_risk(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit
) -> None:
    first = running(submit, owned)
    took(first, 1.0)
    promised = decide(submit(seconds=45, iterations=1000))
    took(first, 41.0)
    Cluster.objects.update(planned_version=0)
    assert decide(promised).promised
    assert not promised.at_risk
    assert decide(submit(seconds=75, iterations=10)).promised


def test_slack_is_bounded_and_follows_only_recent_starts(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit
) -> None:
    assert change_slack_seconds(cluster, timezone.now()) == 0.0
    job = running(submit, owned)
    took(job, 10_000.0)
    assert change_slack_seconds(cluster, timezone.now()) == MOST_SECONDS
    assert change_slack_seconds(cluster, timezone.now() + timedelta(minutes=11)) == 0.0
    job.generations.update(start={"from": "handover"})
    assert change_slack_seconds(cluster, timezone.now()) == 0.0, "the job trained during the change"


def began(job: Job, *, waited: float, took: float) -> None:
    """Set how long the job waited for its GPUs, and the time from then to its first iteration."""
    live = job.generations.get(state=GenerationState.LIVE)
    assert live.live_at is not None
    live.held_at = live.live_at - timedelta(seconds=took)
    live.created_at = live.held_at - timedelta(seconds=waited)
    live.start = {"from": "nothing"}
    live.save(update_fields=["held_at", "created_at", "start"])
    job.generations.exclude(pk=live.pk).update(live_at=None)


def test_slack_is_for_the_latest_of_a_few_starts(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit
) -> None:
    """The longest wait for GPUs and the slowest start count, even of different jobs."""
    first, second, third = (running(submit, owned) for _ in range(3))
    began(first, waited=0.5, took=1.5)
    began(second, waited=3.0, took=1.0)
    began(third, waited=0.0, took=1.25)
    assert change_slack_seconds(cluster, timezone.now()) == pytest.approx(3.5)


def test_slow_starting_functions_do_not_change_the_slack_of_others(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit
) -> None:
    """The function belongs to one project of three. Waits that it causes for other jobs do count."""
    jobs = [running(submit, owned) for _ in range(3)]
    for job, took in zip(jobs, (1.5, 2.0, 41.0), strict=True):
        began(job, waited=0.25, took=took)
        Job.objects.filter(pk=job.pk).update(project=ProjectFactory.create())
    assert change_slack_seconds(cluster, timezone.now()) == pytest.approx(1.25)
    began(jobs[2], waited=5.0, took=41.0)
    assert change_slack_seconds(cluster, timezone.now()) == pytest.approx(6.0)


def test_slack_is_for_the_planners_own_lateness(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A pass may be running when a planned change is due, and another pass precedes the first move."""
    monkeypatch.setattr(change_times, "PASSES", 2)
    PlannerPass.objects.all().delete()
    for seconds in (0.2, 0.75, 0.5):
        PlannerPass.objects.create(cluster=cluster, seconds=seconds)
    assert change_slack_seconds(cluster, timezone.now()) == pytest.approx(1.5)
    assert change_slack_seconds(cluster, timezone.now() + timedelta(minutes=11)) == 0.0
    PlannerPass.objects.create(cluster=cluster, seconds=49.0)
    assert change_slack_seconds(cluster, timezone.now()) == 2 * MOST_PASS_SECONDS


@pytest.mark.parametrize("phase", ["training", "suspending"])
def test_job_stuck_in_an_iteration_loses_its_gpus_soon(
    cluster: Cluster, owned: SimulatedAgent, submit: Submit, clock: SimulatedTime, phase: str
) -> None:
    job = running(submit, owned)
    live = job.generations.get(state=GenerationState.LIVE)
    with transaction.atomic():
        lock_cluster(cluster.pk)
        suspend(job, "its GPUs are needed for promises")
    for worker in owned.workers.values():
        worker.phase = phase  # the agent ordered the suspension, but the function hangs or stores slowly

    def after(seconds: float) -> str:
        clock.turn(seconds)
        owned.report()
        reconcile()
        live.refresh_from_db()
        return live.state

    assert after(4.0) == GenerationState.LIVE, "iterations differ in length"
    assert (after(4.0) == GenerationState.RETIRED) == (phase == "training")
    if phase == "training":
        assert "did not come to the end of its iteration" in live.retire_reason
        owned.obey()
        owned.report()
        assert not job.assignments.exclude(state="released").exists()
    else:
        assert after(cluster.suspend_timeout_seconds - 20) == GenerationState.LIVE
