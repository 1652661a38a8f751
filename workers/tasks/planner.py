"""Tasks of the queue `planner`."""

from __future__ import annotations

from celery import shared_task

from scheduling.services.planning import planning
from scheduling.services.rows import wakeups
from workers.tasks.common import RETRY


@shared_task(name="workers.tasks.plan", **RETRY)
def plan(trigger: str = "tick") -> None:
    """Decide newcomers, reallocate at slot boundaries, measure new functions."""
    wakeups.planner_begins()
    planning.run_planner(trigger)
