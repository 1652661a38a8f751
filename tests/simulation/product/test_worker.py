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
#: The first run in a process may have to compile what nobody has compiled yet.
PATIENCE_SECONDS = 400.0
#: Runs take seconds, and each look asks the database and the worker's processes.
LOOK_SECONDS = 0.2
#: Long enough that it is still under way when the test looks (tens of seconds on one core).
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
    # Earlier tests have asked for runs that nobody worked off: a process for each message takes seconds.
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


def wait(worker: ManagedProcess, condition: Callable[[], bool], what: str) -> None:
    """Wait for `condition`. A worker with a stuck pool ends and is restarted meanwhile."""

    def kept_and_holds() -> bool:
        worker.keep_running()
        return condition()

    try:
        wait_until(kept_and_holds, what, PATIENCE_SECONDS, LOOK_SECONDS)
    except AssertionError as error:
        raise AssertionError(f"{error}; the worker's log ends with\n{worker.log_tail(40)}") from None


def as_beat_does(task: Callable[[], object], period_seconds: float = 5.0) -> Callable[[], None]:
    """Send `task` at most once a period, so that polling does not fill the queue."""
    due_at = time.monotonic()

    def now_and_then() -> None:
        nonlocal due_at
        if time.monotonic() >= due_at:
            due_at = time.monotonic() + period_seconds
            task()

    return now_and_then


def state(run: SimulationRun) -> SimulationRun:
    return SimulationRun.objects.get(pk=run.pk)


def under_way(run: SimulationRun) -> bool:
    now = state(run)
    return now.state == WorkState.RUNNING and now.jobs_ended > 0


def test_a_run_is_executed_and_compared_by_the_worker(worker: ManagedProcess, start: Start) -> None:
    study = start(policies=("punctual",))

    sweep = as_beat_does(runs.sweep_runs)

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
    wait(worker, lambda: state(run).finished(), "the run has stopped")
    assert state(run).state == WorkState.CANCELLED


@pytest.mark.live
def test_a_run_whose_worker_is_killed_is_finished_by_another_attempt(
    worker: ManagedProcess, start: Start
) -> None:
    run = runs_of(start(**{**LONG, "limit_jobs": 4000}))[0]
    wait(worker, lambda: under_way(run), "the run is under way")
    held = state(run)
    assert worker.pid is not None
    for child in psutil.Process(worker.pid).children(recursive=True):
        child.send_signal(signal.SIGKILL)
    # What beat does every few seconds; the lease would end by itself within half a minute.
    SimulationRun.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    wait(worker, lambda: runs.sweep_runs() > 0, "the sweep finds the lost run")
    wait(worker, lambda: state(run).finished(), "another attempt has finished")
    finished = state(run)
    assert (finished.state, finished.error) == (WorkState.DONE, "")
    assert finished.attempts == 2
    assert finished.lease_token != held.lease_token
