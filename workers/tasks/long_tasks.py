"""Celery tasks around long tasks: the builds of environments, and the sweep of every kind
(`scheduling/services/long_tasks.py`).

A new kind is a row of `LeasedWork`, a `LongTask` about it, a task that calls its `work_off`, and its sweep
here.
"""

from __future__ import annotations

from celery import shared_task
from django.db import OperationalError

from lending.services.trainings import TRAININGS
from scheduling.services import environments
from simulation.services.runs import sweep_runs

_RETRY = {"autoretry_for": (OperationalError,), "retry_backoff": 1, "max_retries": 3}
SWEEPS = (environments.BUILDS.sweep, TRAININGS.sweep, sweep_runs)


@shared_task(name="workers.tasks.build_environment", time_limit=3600, soft_time_limit=3500, **_RETRY)
def build_environment(digest: str) -> None:
    """Install the requirements that functions wait for."""
    environments.build_environment(digest)


@shared_task(name="workers.tasks.sweep_long_tasks", **_RETRY)
def sweep_long_tasks() -> None:
    """Queue work again whose worker is gone, and repeat messages that were lost. No kind waits for
    another's."""
    failures = []
    for sweep in SWEEPS:
        try:
            sweep()
        except Exception as error:  # noqa: BLE001 - whatever it is, it is raised below
            failures.append(error)
    if failures:
        raise failures[0]
