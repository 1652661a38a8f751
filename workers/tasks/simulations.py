"""Tasks of the queue `simulations`. Each runs in its own process; only this process loads the simulator."""

from __future__ import annotations

from celery import shared_task
from django.conf import settings

from simulation.services import runs
from workers.tasks.common import RETRY, be_nice

#: A run ends itself in time (`SIMULATION_RUN_SECONDS`); this ends a worker that is stuck.
_SECONDS = int(settings.SIMULATION_LIMITS["run_seconds"])


@shared_task(
    name="workers.tasks.simulate_run", soft_time_limit=_SECONDS + 240, time_limit=_SECONDS + 300, **RETRY
)
def simulate_run(run_id: int) -> None:
    """Run a queued simulation, then compare it with its study's others."""
    be_nice()
    from simulation.services.comparing import refresh_comparison
    from simulation.services.executing import execute_run

    study_id = runs.study_of(run_id)
    if study_id is not None and execute_run(run_id):
        refresh_comparison(study_id)
    # Messages of other runs may have expired in the meantime; this process is now free for the next run.
    runs.sweep_runs()


@shared_task(name="workers.tasks.compare_runs", soft_time_limit=540, time_limit=600, **RETRY)
def compare_runs(study_id: int) -> None:
    """Make a comparison that is still missing."""
    be_nice()
    from simulation.services.comparing import refresh_comparison

    refresh_comparison(study_id)
