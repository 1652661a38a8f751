"""Celery tasks of lending: wake-ups that work off orders, forecast usage and train forecasters, the latter two on a queue of
their own: they may load PyTorch."""

from __future__ import annotations

from celery import shared_task
from django.db import OperationalError

from scheduling.services import lending_orchestrator

_RETRY = {"autoretry_for": (OperationalError,), "retry_backoff": 1, "max_retries": 3}


@shared_task(name="workers.tasks.orchestrate", **_RETRY)
def orchestrate() -> None:
    """Ask back what forecasts want, work off loan and reclaim orders."""
    lending_orchestrator.orchestrate()


@shared_task(name="workers.tasks.work_off_orders", **_RETRY)
def work_off_orders() -> None:
    """Begin orders whose time has come, and send home the servers that hold no work any more."""
    lending_orchestrator.work_off_orders()


@shared_task(name="workers.tasks.forecast_usage", **_RETRY)
def forecast_usage(inference_cluster_id: int) -> None:
    """Say what is expected of an inference cluster's next period."""
    from scheduling.services.lending_usage import forecast_usage as forecast

    forecast(inference_cluster_id)
