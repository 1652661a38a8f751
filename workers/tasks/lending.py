"""Celery tasks of lending: wake-ups that work off orders, forecast usage and train forecasters, the latter
two on a queue of their own: they may load PyTorch."""

from __future__ import annotations

import os

from celery import shared_task
from django.db import OperationalError

from lending.services import orchestrator, trainings, usage

_RETRY = {"autoretry_for": (OperationalError,), "retry_backoff": 1, "max_retries": 3}
#: Nobody waits for a model: without one the last sample is the forecast.
_NICENESS = 10


@shared_task(name="workers.tasks.orchestrate", **_RETRY)
def orchestrate() -> None:
    """Ask back what forecasts want, work off loan and reclaim orders."""
    orchestrator.orchestrate()


@shared_task(name="workers.tasks.work_off_orders", **_RETRY)
def work_off_orders() -> None:
    """Begin orders whose time has come, and send home the servers that hold no work any more."""
    orchestrator.work_off_orders()


@shared_task(name="workers.tasks.forecast_usage", **_RETRY)
def forecast_usage(inference_cluster_id: int) -> None:
    """Say what is expected of an inference cluster's next period."""
    usage.forecast_usage(inference_cluster_id)


@shared_task(name="workers.tasks.train_forecaster", soft_time_limit=1740, time_limit=1800, **_RETRY)
def train_forecaster(training_id: int) -> None:
    """Run a queued training."""
    if os.getpriority(os.PRIO_PROCESS, 0) < _NICENESS:
        os.setpriority(os.PRIO_PROCESS, 0, _NICENESS)
    trainings.training_run(training_id)


@shared_task(name="workers.tasks.start_trainings", **_RETRY)
def start_trainings() -> None:
    """Queue the trainings whose day has come."""
    trainings.start_due_trainings()
