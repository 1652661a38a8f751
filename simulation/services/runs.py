"""The life of a run in rows: claimed under a lease, renewed, ended; lost ones are found and queued again."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import timedelta
from typing import Any

import structlog
from django.db import transaction
from django.db.models import Count, Q
from django.utils import timezone

from cluster.choices import WorkState
from scheduling.services.wakeups import hint, wake
from simulation import store
from simulation.models import SimulationRun, SimulationStudy

log = structlog.get_logger(__name__)

#: A worker that is alive renews its lease twice a second.
LEASE = timedelta(seconds=30)
#: A message older than this has expired in the broker (`scheduling/services/wakeups.py`); the sweep sends
#: another.
MESSAGE_LASTS = timedelta(seconds=65)
#: Runs that are told of at once: a long queue must not fill the broker with messages that expire in it.
MOST_MESSAGES = 32
#: A run whose workers died this often is given up: it would take a fourth one with it.
MOST_ATTEMPTS = 3
#: A comparison is made right after a run; one that is still missing after this long was lost with its worker.
COMPARISON_LATE = timedelta(seconds=60)


@dataclass(frozen=True)
class ClaimedRun:
    """A run that this worker holds, and the token under which it may write."""

    run: SimulationRun
    study: SimulationStudy
    token: str


def tell_pages(kind: str = "simulations") -> None:
    """Pages that show simulations read again: how far runs are, or with ``compared`` their figures as
    well."""
    hint("cluster:simulations", kind=kind)


def study_of(run_id: int) -> int | None:
    """The run's study; None where the run was deleted."""
    return SimulationRun.objects.filter(pk=run_id).values_list("study_id", flat=True).first()


@transaction.atomic
def run_claim(run_id: int) -> ClaimedRun | None:
    """Take a queued run. None where it is not queued, or somebody else takes it at this moment."""
    run = SimulationRun.lock_queued(run_id, "study")
    if run is None:
        return None
    token = run.take(LEASE)
    run.jobs_total = run.jobs_ended = 0
    run.simulated_seconds = 0.0
    run.save()
    tell_pages()
    return ClaimedRun(run, run.study, token)


def run_renew(
    claimed: ClaimedRun, *, jobs_ended: int, jobs_total: int, simulated_seconds: float
) -> bool | None:
    """Say how far the run is and keep its lease. Returns whether it shall stop; None where the lease is
    lost."""
    kept = claimed.run.held(claimed.token).update(
        lease_expires_at=timezone.now() + LEASE,
        jobs_ended=jobs_ended,
        jobs_total=jobs_total,
        simulated_seconds=simulated_seconds,
    )
    if not kept:
        return None
    tell_pages()
    return SimulationRun.objects.filter(pk=claimed.run.pk).values_list("cancel_requested", flat=True).first()


def run_finish(claimed: ClaimedRun, *, summary: dict[str, Any], results_key: str) -> bool:
    """Write the result. False where the run is no longer this worker's: the result is thrown away."""
    return _end(
        claimed,
        state=WorkState.DONE,
        summary=summary,
        results_key=results_key,
        jobs_ended=summary["jobs"],
        jobs_total=summary["jobs"],
        simulated_seconds=summary["simulated_seconds"],
    )


def run_fail(claimed: ClaimedRun, error: str) -> bool:
    """End the run with a sentence on why."""
    return _end(claimed, state=WorkState.FAILED, error=error[:2000] or "It failed without a word.")


def run_stop(claimed: ClaimedRun) -> bool:
    """End the run as its operator asked."""
    return _end(claimed, state=WorkState.CANCELLED)


def _end(claimed: ClaimedRun, **values: Any) -> bool:
    ended = claimed.run.end(claimed.token, **values)
    tell_pages()
    return ended


# What is found missing --------------------------------------------------------------------------------


def sweep_runs() -> int:
    """Queue runs again whose worker is gone, send messages that were lost, ask for comparisons that are
    missing.

    Returns how many things it put right.
    """
    return _take_back_expired() + _wake_queued() + _wake_comparisons()


@transaction.atomic
def _take_back_expired() -> int:
    now = timezone.now()
    count = 0
    for run in SimulationRun.lock_lost(now):
        count += 1
        error = (
            f"Its worker process was lost {run.attempts} times; a run may be too large for the memory there "
            f"is."
        )
        if run.take_back(now, most_attempts=MOST_ATTEMPTS, error=error):
            run.wake_at = now + MESSAGE_LASTS
            run.jobs_ended = run.jobs_total = 0
            run.simulated_seconds = 0.0
            wake("simulate_run", run_id=run.pk)
        run.save()
        log.warning("simulation run lost its worker", run=run.pk, attempts=run.attempts, state=run.state)
        tell_pages()
    return count


@transaction.atomic
def _wake_queued() -> int:
    now = timezone.now()
    queued = SimulationRun.objects.filter(state=WorkState.QUEUED)
    room = max(0, MOST_MESSAGES - queued.filter(wake_at__gt=now).count())
    overdue = queued.select_for_update(skip_locked=True).filter(wake_at__lte=now).order_by("id")[:room]
    count = 0
    for run in overdue:
        count += 1
        run.wake_at = now + MESSAGE_LASTS
        run.save(update_fields=["wake_at"])
        wake("simulate_run", run_id=run.pk)
    return count


@transaction.atomic
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
    """Delete files of studies that exist no more: the store was away, or a worker finished after the
    deletion."""
    stored = store.studies_stored()
    known = set(SimulationStudy.objects.filter(pk__in=stored).values_list("pk", flat=True))
    return sum(store.remove(store.study_folder(study_id)) for study_id in stored if study_id not in known)
