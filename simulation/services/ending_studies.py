"""Cancelling and deleting studies and runs."""

from __future__ import annotations

from django.db import transaction

from cluster.choices import FINAL_WORK_STATES
from projects.errors import Conflict
from simulation import store
from simulation.models import SimulationRun, SimulationStudy
from simulation.services.runs import RUNS, tell_pages


@transaction.atomic
def study_cancel(*, study: SimulationStudy) -> int:
    """Cancel the study's unfinished runs. Return their number.

    Raises:
        Conflict: every run is finished.
    """
    open_runs = list(study.runs.exclude(state__in=FINAL_WORK_STATES).select_for_update().order_by("id"))
    if not open_runs:
        raise Conflict(f"Every run of study {study.pk} is finished.")
    for run in open_runs:
        RUNS.cancel(run)
    return len(open_runs)


@transaction.atomic
def run_cancel(*, run: SimulationRun) -> SimulationRun:
    """Cancel one run: at once if it is queued, else when its worker next checks.

    Raises:
        Conflict: the run is finished.
    """
    current = SimulationRun.objects.select_for_update().get(pk=run.pk)
    if current.finished():
        raise Conflict(f"Run {run.pk} is {current.state} already.")
    return RUNS.cancel(current)


@transaction.atomic
def study_delete(*, study: SimulationStudy) -> None:
    """Delete the study with its runs and files. A worker on one of its runs stops and leaves no files."""
    key = store.study_folder(study.pk)
    study.delete()
    tell_pages()
    # Files left because the store is unavailable are deleted later (`runs.delete_orphans`).
    transaction.on_commit(lambda: store.remove(key))
