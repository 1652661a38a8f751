"""Celery tasks: wake-ups that call services. Each finds its work in PostgreSQL, so any may be lost or run
twice."""

from __future__ import annotations

from celery import shared_task
from django.db import OperationalError
from django.utils import timezone

from lending.services.usage import forget_old_usage
from scheduling.services import (
    better_plans,
    curves,
    drain,
    gradient_plans,
    housekeeping,
    leases,
    link_probes,
    plan_watch,
    planning,
    wakeups,
)

#: A database that is away or full comes back; the task is tried again, and the next tick would do the same.
_RETRY = {"autoretry_for": (OperationalError,), "retry_backoff": 1, "max_retries": 3}


@shared_task(name="workers.tasks.plan", **_RETRY)
def plan(trigger: str = "tick") -> None:
    """Decide newcomers, reallocate at slot boundaries, measure new functions."""
    wakeups.planner_begins()
    planning.run_planner(trigger)


@shared_task(name="workers.tasks.reconcile", **_RETRY)
def reconcile() -> None:
    """Close the difference between what should be and what is."""
    leases.reconcile()
    drain.finish_drains()


@shared_task(name="workers.tasks.expire_leases", **_RETRY)
def expire_leases() -> None:
    """Suspect and fence silent servers."""
    leases.expire_leases()


@shared_task(name="workers.tasks.sweep_outbox", **_RETRY)
def sweep_outbox() -> None:
    """Send the messages that their writers did not."""
    wakeups.sweep_outbox()


@shared_task(name="workers.tasks.refine_curves", **_RETRY)
def refine_curves() -> None:
    """Sharpen scaling curves by what running jobs show, give communication plans up that lose, and take those
    up that were measured to win."""
    curves.refine_curves()
    plan_watch.watch_plans()
    better_plans.take_up_better_plans()
    better_plans.follow_newer_plans()


@shared_task(name="workers.tasks.measure_links", **_RETRY)
def measure_links() -> None:
    """Have the agents of idle servers measure the links between them."""
    link_probes.ask_for_measurements()


#: A model of hundreds of tensors with all codecs takes a minute on a machine that does other things too.
_PLANNING_LIMITS = {"soft_time_limit": 540, "time_limit": 600}


@shared_task(name="workers.tasks.make_gradient_plans", **_RETRY, **_PLANNING_LIMITS)
def make_gradient_plans() -> None:
    """Make communication plans of gradients that were measured, beside all passes of the planner."""
    gradient_plans.make_plans()


@shared_task(name="workers.tasks.housekeeping", **_RETRY)
def keep_house() -> None:
    """Delete what its time is up for."""
    housekeeping.keep_house()
    forget_old_usage(timezone.now())
