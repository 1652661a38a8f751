"""A real Celery worker on the queue `simulations`: from message to result, and after its own death."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from django.db import connection
from django.utils import timezone

from cluster.choices import WorkState
from config.celery import app
from launch.process import ManagedProcess, ProcessSpecification
from simulation.models import SimulationRun, SimulationStudy
from simulation.selectors.studies import comparison_of, study_get
from simulation.services import runs
from simulation.services.ending_studies import run_cancel
from tests.dashboard.waiting import wait_until
from tests.simulation.product.conftest import runs_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]
Start = Callable[..., SimulationStudy]
QUEUE = "simulations"
#: Long, since the first run in a process may have to compile the kernels.
PATIENCE_SECONDS = 400.0
#: Runs take seconds, and each poll queries the database and the worker's processes.
POLL_SECONDS = 0.2
#: A run that is still under way when the test polls it (tens of seconds on one core).
LONG = {
    "policies": ("punctual",),
    "servers": (64,),
    "gpus_per_server": 8,
    "limit_jobs": 20_000,
    "trace": "bursty",
}


@pytest.fixture
def worker(transactional_db: None, store: Path, tmp_path: Path) -> Iterator[ManagedProcess]:
    """Start the worker as the supervisor does, on the test's database and store, and keep it running."""
    # Earlier tests leave messages in the queue, and each would take seconds in a process of its own.
    with app.connection_for_write() as connected:
        connected.default_channel.queue_purge(QUEUE)
    name = connection.settings_dict["NAME"]
    database = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()
    log = tmp_path / "worker.log"
    process = ManagedProcess(
        ProcessSpecification(
            name="worker",
            command=[sys.executable, "-m", "celery", "-A", "config", "worker", "--queues", QUEUE,
                     "--concurrency", "1", "--max-tasks-per-child", "1", "--without-mingle",
                     "--without-gossip", "--loglevel", "info"],
            environment={**os.environ, "DATABASE_URL": database, "CHECKPOINT_URL": f"file://{store}"},
            log=log,
            working_folder=Path.cwd(),
            is_ready=lambda: b"ready." in log.read_bytes(),
            ready_timeout_seconds=PATIENCE_SECONDS,
        )
    )  # fmt: skip
    process.start()
    process.wait_ready()
    yield process
    process.finish(grace_seconds=0.0)


def wait(worker: ManagedProcess, condition: Callable[[], bool], description: str) -> None:
    """Wait for `condition`. A worker with a stuck pool ends and is restarted meanwhile."""

    def poll() -> bool:
        worker.keep_running()
        return condition()

    try:
        wait_until(poll, description, PATIENCE_SECONDS, POLL_SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}; the worker's log ends with\n{worker.log_tail(40)}") from None


def at_most_once_per(task: Callable[[], object], period_seconds: float = 5.0) -> Callable[[], None]:
    """Send `task` at most once a period, so that polling does not fill the queue."""
    due_at = time.monotonic()

    def send_when_due() -> None:
        nonlocal due_at
        if time.monotonic() >= due_at:
            due_at = time.monotonic() + period_seconds
            task()

    return send_when_due


def reloaded(run: SimulationRun) -> SimulationRun:
    return SimulationRun.objects.get(pk=run.pk)


def under_way(run: SimulationRun) -> bool:
    now = reloaded(run)
    return now.state == WorkState.RUNNING and now.jobs_ended > 0


def test_a_run_is_executed_and_compared_by_the_worker(worker: ManagedProcess, start: Start) -> None:
    study = start(policies=("punctual",))

    sweep = at_most_once_per(runs.sweep_runs)

    def compared_it() -> bool:
        sweep()
        return len(SimulationStudy.objects.get(pk=study.pk).compared_runs) == 1

    wait(worker, compared_it, "the run is compared")
    assert {run.state for run in runs_of(study)} == {WorkState.DONE}
    compared = comparison_of(study_get(study.pk))
    assert compared is not None
    assert len(compared["runs"]) == 1


@pytest.mark.live
def test_a_run_under_way_is_cancelled(worker: ManagedProcess, start: Start) -> None:
    run = runs_of(start(**LONG))[0]
    wait(worker, lambda: under_way(run), "the run is under way")
    run_cancel(run=run)
    wait(worker, lambda: reloaded(run).finished(), "the run has stopped")
    assert reloaded(run).state == WorkState.CANCELLED


@pytest.mark.live
def test_a_run_whose_worker_is_killed_is_finished_by_another_attempt(
    worker: ManagedProcess, start: Start
) -> None:
    run = runs_of(start(**{**LONG, "limit_jobs": 4000}))[0]
    wait(worker, lambda: under_way(run), "the run is under way")
    lost = reloaded(run)
    assert worker.pid is not None
    for child in psutil.Process(worker.pid).children(recursive=True):
        child.send_signal(signal.SIGKILL)
    # Expire the lease now instead of waiting half a minute, so that the next sweep finds the run.
    SimulationRun.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    wait(worker, lambda: runs.sweep_runs() > 0, "the sweep finds the lost run")
    wait(worker, lambda: reloaded(run).finished(), "another attempt has finished")
    finished = reloaded(run)
    assert (finished.state, finished.error) == (WorkState.DONE, "")
    assert finished.attempts == 2
    assert finished.lease_token != lost.lease_token
