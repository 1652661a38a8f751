"""A real Celery worker on the queue `simulations`: from the message to the result, and through its own death."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from urllib.parse import urlsplit

import psutil
import pytest
from django.db import connection
from django.utils import timezone

from cluster.choices import WorkState
from simulation.models import SimulationRun, SimulationStudy
from simulation.selectors.studies import comparison_of, study_get
from simulation.services import runs
from simulation.services.studies import run_cancel
from tests.dashboard.waiting import wait_until
from tests.simulation.product.conftest import runs_of

pytestmark = [pytest.mark.django_db(transaction=True), pytest.mark.timeout(900)]
Start = Callable[..., SimulationStudy]
#: The first run in a process may have to compile what nobody has compiled yet.
PATIENCE_SECONDS = 400.0
#: Long enough that it is still under way when the test looks (tens of seconds on one core).
LONG = {
    "policies": ("punctual",),
    "servers": (64,),
    "gpus_per_server": 8,
    "limit_jobs": 40_000,
    "trace": "bursty",
}


@pytest.fixture
def worker(transactional_db: None, store: Path, tmp_path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """As the supervisor starts it, on the test's database and store."""
    name = connection.settings_dict["NAME"]
    database = urlsplit(os.environ["DATABASE_URL"])._replace(path=f"/{name}").geturl()
    log = tmp_path / "worker.log"
    with log.open("wb") as output:
        process = subprocess.Popen(
            [sys.executable, "-m", "celery", "-A", "config", "worker", "--queues", "simulations", "--concurrency", "1",
             "--max-tasks-per-child", "1", "--without-mingle", "--without-gossip", "--loglevel", "info"],
            env={**os.environ, "DATABASE_URL": database, "CHECKPOINT_URL": f"file://{store}"},
            stdout=output,
            stderr=subprocess.STDOUT,
        )  # fmt: skip
    wait_until(
        lambda: process.poll() is not None or b"ready." in log.read_bytes(),
        "the worker is ready",
        PATIENCE_SECONDS,
    )
    assert process.poll() is None, log.read_text()
    yield process
    for child in psutil.Process(process.pid).children(recursive=True) if process.poll() is None else []:
        child.kill()
    process.kill()
    process.wait()


def state(run: SimulationRun) -> SimulationRun:
    return SimulationRun.objects.get(pk=run.pk)


def under_way(run: SimulationRun) -> bool:
    now = state(run)
    return now.state == WorkState.RUNNING and now.jobs_ended > 0


@pytest.mark.usefixtures("worker")
def test_runs_are_executed_and_compared_by_the_worker(start: Start) -> None:
    study = start()

    def compared_both() -> bool:
        runs.sweep_runs()  # as beat does
        return len(SimulationStudy.objects.get(pk=study.pk).compared_runs) == 2

    wait_until(
        compared_both,
        "both runs are compared",
        PATIENCE_SECONDS,
    )
    assert {run.state for run in runs_of(study)} == {WorkState.DONE}
    compared = comparison_of(study_get(study.pk))
    assert compared is not None
    assert len(compared["runs"]) == 2


@pytest.mark.usefixtures("worker")
def test_a_run_under_way_is_cancelled(start: Start) -> None:
    run = runs_of(start(**LONG))[0]
    wait_until(lambda: under_way(run), "the run is under way", PATIENCE_SECONDS)
    run_cancel(run=run)
    wait_until(lambda: state(run).finished(), "the run has stopped", PATIENCE_SECONDS)
    assert state(run).state == WorkState.CANCELLED


def test_a_run_whose_worker_is_killed_is_finished_by_another_attempt(
    worker: subprocess.Popen[bytes], start: Start
) -> None:
    run = runs_of(start(**{**LONG, "limit_jobs": 4000}))[0]
    wait_until(lambda: under_way(run), "the run is under way", PATIENCE_SECONDS)
    held = state(run)
    for child in psutil.Process(worker.pid).children(recursive=True):
        child.send_signal(signal.SIGKILL)
    # What beat does every few seconds; the lease would end by itself within half a minute.
    SimulationRun.objects.filter(pk=run.pk).update(lease_expires_at=timezone.now() - timedelta(seconds=1))
    wait_until(lambda: runs.sweep_runs() > 0, "the sweep finds the lost run", PATIENCE_SECONDS)
    wait_until(lambda: state(run).finished(), "another attempt has finished", PATIENCE_SECONDS)
    finished = state(run)
    assert (finished.state, finished.error) == (WorkState.DONE, "")
    assert finished.attempts == 2
    assert finished.lease_token != held.lease_token
