"""Celery tasks of simulations, on a queue of their own. Like all tasks they are wake-ups: rows say what is to
be done."""

from __future__ import annotations

import os

from celery import shared_task
from django.conf import settings
from django.db import OperationalError

from simulation.services import runs

_RETRY = {"autoretry_for": (OperationalError,), "retry_backoff": 1, "max_retries": 3}
#: A run ends itself in time (`SIMULATION_RUN_SECONDS`); this ends a worker that is stuck.
_SECONDS = int(settings.SIMULATION_LIMITS["run_seconds"])
#: Nobody waits for a simulation as they wait for a verdict.
_NICENESS = 10


@shared_task(
    name="workers.tasks.simulate_run", soft_time_limit=_SECONDS + 240, time_limit=_SECONDS + 300, **_RETRY
)
def simulate_run(run_id: int) -> None:
    """Run a queued simulation, then compare it with its study's others."""
    _be_nice()
    # Here, not above: the simulator and its reports are of no use to the workers of other queues.
    from simulation.services.comparing import refresh_comparison
    from simulation.services.executing import execute_run

    study_id = runs.study_of(run_id)
    if study_id is not None and execute_run(run_id):
        refresh_comparison(study_id)
    # Messages of other runs may have expired meanwhile: this process is free for the next one now.
    runs.sweep_runs()


@shared_task(name="workers.tasks.compare_runs", soft_time_limit=540, time_limit=600, **_RETRY)
def compare_runs(study_id: int) -> None:
    """Make the comparison that a worker did not come to."""
    _be_nice()
    from simulation.services.comparing import refresh_comparison

    refresh_comparison(study_id)


@shared_task(name="workers.tasks.delete_simulation_orphans", **_RETRY)
def delete_simulation_orphans() -> None:
    """Delete files of studies that exist no more."""
    runs.delete_orphans()


def _be_nice() -> None:
    if os.getpriority(os.PRIO_PROCESS, 0) < _NICENESS:
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
