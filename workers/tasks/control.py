"""Tasks of the queue `control`: short wake-ups, most of which find nothing to do."""

from __future__ import annotations

from celery import shared_task
from django.utils import timezone

from deployments.services import lending, sampling, steering
from lending.services import orchestrator, trainings
from lending.services.usage import forget_old_usage
from scheduling.services.agents import drain, leases, link_probes
from scheduling.services.generations import plan_watch
from scheduling.services.long_work import environments, housekeeping
from scheduling.services.measuring import better_plans, curves
from scheduling.services.rows import wakeups
from simulation.services import runs
from workers.tasks.common import RETRY

#: Sweeps of all kinds of long tasks (`scheduling/services/long_work/long_tasks.py`).
SWEEPS = (environments.BUILDS.sweep, trainings.TRAININGS.sweep, runs.sweep_runs)


@shared_task(name="workers.tasks.reconcile", **RETRY)
def reconcile() -> None:
    """Reconcile desired and reported states of agents, and finish drains."""
    leases.reconcile()
    drain.finish_drains()


@shared_task(name="workers.tasks.expire_leases", **RETRY)
def expire_leases() -> None:
    """Suspect and fence silent servers."""
    leases.expire_leases()


@shared_task(name="workers.tasks.sweep_outbox", **RETRY)
def sweep_outbox() -> None:
    """Send messages of the outbox that were not sent when they were written."""
    wakeups.sweep_outbox()


@shared_task(name="workers.tasks.refine_curves", **RETRY)
def refine_curves() -> None:
    """Refine scaling curves with measurements of running jobs, give up communication plans that lose, and
    adopt plans that were measured to win."""
    curves.refine_curves()
    plan_watch.watch_plans()
    better_plans.take_up_better_plans()
    better_plans.follow_newer_plans()


@shared_task(name="workers.tasks.measure_links", **RETRY)
def measure_links() -> None:
    """Ask agents of idle servers to measure the links between them."""
    link_probes.ask_for_measurements()


@shared_task(name="workers.tasks.housekeeping", **RETRY)
def keep_house() -> None:
    """Delete expired rows."""
    housekeeping.keep_house()
    forget_old_usage(timezone.now())
    sampling.forget_old_samples(timezone.now())


@shared_task(name="workers.tasks.sweep_long_tasks", **RETRY)
def sweep_long_tasks() -> None:
    """Requeue work whose worker is gone, and repeat lost messages. An error in one sweep does not stop the
    others."""
    failures = []
    for sweep in SWEEPS:
        try:
            sweep()
        except Exception as error:  # noqa: BLE001 - raised below
            failures.append(error)
    if failures:
        raise failures[0]


@shared_task(name="workers.tasks.orchestrate", **RETRY)
def orchestrate() -> None:
    """Ask back servers by forecasts, and process loan and reclaim orders."""
    orchestrator.orchestrate()


@shared_task(name="workers.tasks.work_off_orders", **RETRY)
def work_off_orders() -> None:
    """Begin due orders, and return servers that have no more work."""
    orchestrator.work_off_orders()


@shared_task(name="workers.tasks.steer_deployments", **RETRY)
def steer_deployments() -> None:
    """Bring every deployment closer to the replicas that it should have."""
    steering.steer_deployments()


@shared_task(name="workers.tasks.measure_deployments", **RETRY)
def measure_deployments() -> None:
    """Sample every deployment, decide how many servers each needs, and lend or ask back accordingly."""
    sampling.measure_deployments()
    lending.schedule_inference_clusters()


@shared_task(name="workers.tasks.start_trainings", **RETRY)
def start_trainings() -> None:
    """Queue due trainings."""
    trainings.start_due_trainings()


@shared_task(name="workers.tasks.delete_simulation_orphans", **RETRY)
def delete_simulation_orphans() -> None:
    """Delete files of studies that no longer exist."""
    runs.delete_orphans()
