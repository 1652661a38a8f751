"""Progress reported by user code is believed only as far as the job's speed allows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
from django.utils import timezone

from cluster.models import Cluster
from scheduling.choices import GenerationState
from scheduling.core.question.snapshot import JobSnapshot
from scheduling.models import Generation, Job
from scheduling.services.planning.planning import run_planner
from scheduling.services.rows.believed import FASTER, UNCOUNTED
from scheduling.services.snapshots.snapshots import pool_snapshot
from tests.control_plane.conftest import SPEED
from tests.control_plane.simulated_agent import KIND, SimulatedAgent, settle
from tests.control_plane.simulated_time import SimulatedTime

pytestmark = pytest.mark.django_db(transaction=True)

#: They take a thousand seconds on four GPUs.
ITERATIONS = 34_000


@pytest.fixture
def promised(owned: SimulatedAgent, submit: Callable[..., Job], clock: SimulatedTime) -> Job:
    """Return a promised job that has just begun to train on all GPUs."""
    job = submit("slo", seconds=1_100.0, iterations=ITERATIONS)
    for _ in range(6):
        settle(owned, rounds=1)
        clock.turn(0.1)
    job.refresh_from_db()
    assert job.promised
    return job


def report_iteration(agent: SimulatedAgent, job: Job, iteration: int) -> None:
    """Report this iteration from the job's code."""
    generation = job.generations.get(state=GenerationState.LIVE).number
    item: dict[str, Any] = {
        "job": job.pk,
        "generation": generation,
        "iteration": iteration,
        "values": {},
        "iterations_per_second": SPEED[4],
        "train_seconds": 0.01,
        "age_seconds": 0.0,
    }
    assert agent.report(metrics=[item]).refused == []
    assert Job.objects.get(pk=job.pk).iterations_done == iteration, "users see the reported iteration"


def planned_row(job: Job) -> JobSnapshot:
    """Return the job's row in the planner's snapshot."""
    snapshot = pool_snapshot(Cluster.objects.get(), KIND, timezone.now()).snapshot
    return next(item for item in snapshot.jobs if item.id == job.pk)


def test_implausible_progress_frees_no_gpus_for_newcomers(
    owned: SimulatedAgent, submit: Callable[..., Job], promised: Job, clock: SimulatedTime
) -> None:
    report_iteration(owned, promised, ITERATIONS - 1)
    assert planned_row(promised).remaining_iterations > 0.9 * ITERATIONS
    newcomer = submit("slo", seconds=300.0, iterations=34 * 200)
    run_planner("test")
    newcomer.refresh_from_db()
    assert not newcomer.promised


def test_implausible_start_iteration_is_not_believed(owned: SimulatedAgent, promised: Job) -> None:
    report_iteration(owned, promised, ITERATIONS - 1)
    Generation.objects.filter(job=promised, state=GenerationState.LIVE).update(
        start_iteration=ITERATIONS - 1, live_at=timezone.now()
    )
    assert planned_row(promised).remaining_iterations > 0.9 * ITERATIONS


@pytest.mark.parametrize("faster", [pytest.param(1.0, marks=pytest.mark.slow), 1.2])
def test_progress_at_or_slightly_above_measured_speed_is_believed(
    owned: SimulatedAgent, promised: Job, clock: SimulatedTime, faster: float
) -> None:
    gpus = planned_row(promised).gpus_now
    for _ in range(100):
        clock.turn(1.0)
        owned.report()
    done = int(100 * SPEED[gpus] * faster)
    report_iteration(owned, promised, done)
    assert faster < FASTER
    assert planned_row(promised).remaining_iterations == pytest.approx(ITERATIONS - done, abs=UNCOUNTED)


def test_unpromised_job_progress_is_believed(owned: SimulatedAgent, submit: Callable[..., Job]) -> None:
    job = submit("best_effort", iterations=ITERATIONS)
    settle(owned)
    report_iteration(owned, job, ITERATIONS - 1)
    assert planned_row(job).remaining_iterations == 1.0
