"""Tasks of the queue `gradients`."""

from __future__ import annotations

from celery import shared_task

from scheduling.services.gradients import gradient_plans
from workers.tasks.common import RETRY

#: A model of hundreds of tensors with all codecs takes a minute on a busy machine.
_PLANNING_LIMITS = {"soft_time_limit": 540, "time_limit": 600}


@shared_task(name="workers.tasks.make_gradient_plans", **RETRY, **_PLANNING_LIMITS)
def make_gradient_plans() -> None:
    """Make communication plans for measured gradients, outside the planner's passes."""
    gradient_plans.make_plans()
