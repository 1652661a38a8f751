"""Runs as long tasks, the comparisons made of them, and sweeps for lost ones."""

from __future__ import annotations

from datetime import timedelta

from django.db.models import Count, Q
from django.utils import timezone

from cluster.choices import WorkState
from scheduling.services.long_work.long_tasks import LongTask
from scheduling.services.rows.wakeups import hint, wake
from simulation import store
from simulation.models import SimulationRun, SimulationStudy

#: Comparisons are made right after a run; one missing for this long was lost with its worker.
COMPARISON_LATE = timedelta(seconds=60)


def tell_pages(kind: str = "simulations") -> None:
    """Let pages on simulations reload: progress of runs, and for kind ``compared`` the figures too."""
    hint("cluster:simulations", kind=kind)


RUNS = LongTask(
    rows=SimulationRun,
    topic="simulate_run",
    argument="run_id",
    related=("study",),
    progress={"jobs_total": 0, "jobs_ended": 0, "simulated_seconds": 0.0},
    lost="Its worker process was lost {attempts} times; a run may be too large for the memory there is.",
    tell=lambda run: tell_pages(),
)


def study_of(run_id: int) -> int | None:
    """Return the run's study; None if the run was deleted."""
    return SimulationRun.objects.filter(pk=run_id).values_list("study_id", flat=True).first()


def sweep_runs() -> int:
    """Run `LongTask.sweep`, and ask for missing comparisons. Return how many rows were repaired."""
    return RUNS.sweep() + _wake_comparisons()


def _wake_comparisons() -> int:
    late = timezone.now() - COMPARISON_LATE
    done = Q(runs__state=WorkState.DONE, runs__finished_at__lt=late)
    count = 0
    for study in SimulationStudy.objects.annotate(done=Count("runs", filter=done)).filter(done__gt=0):
        if study.done > len(study.compared_runs):
            count += 1
            wake("compare_runs", study_id=study.pk)
    return count


def delete_orphans() -> int:
    """Delete files of deleted studies, left because the store was unavailable or a worker finished later."""
    stored = store.studies_stored()
    known = set(SimulationStudy.objects.filter(pk__in=stored).values_list("pk", flat=True))
    return sum(store.remove(store.study_folder(study_id)) for study_id in stored if study_id not in known)
