"""Carries out recoveries: reads facts from rows and executes the instructions of `recovery.life_cycle`.
Callers hold the cluster's row.

The planner restarts the job as a new generation, and agents ignore orders for older ones. This module
records the phases, starts training in a prepared successor, and gives up a stuck successor. Every step is
idempotent, and a crash between two steps does no harm.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from datetime import datetime
from typing import Any

import structlog
from django.db import OperationalError, transaction
from django.utils import timezone

from cluster.models import Cluster
from projects.prepared import PreparedRows
from recovery.life_cycle import steps as instructions
from recovery.life_cycle.facts import PHASES, RecoveryPhase
from recovery.life_cycle.steps import RecoveryInstruction, next_step
from scheduling.choices import GenerationState, Goal, RecoveryKind, RecoveryOutcome
from scheduling.models import Generation, Recovery
from scheduling.services.generations.generations import begin_training, live_generation
from scheduling.services.generations.lifecycle import give_up
from scheduling.services.generations.recoveries import begin_anew, break_off, conclude, note_sources
from scheduling.services.generations.recovery_facts import (
    RecoveryRows,
    began_at,
    recovery_bounds,
    recovery_facts,
    recovery_rows,
)

log = structlog.get_logger(__name__)

#: One call passes all phases at most twice: once, and once after a restart.
MOST_STEPS = 2 * len(PHASES)


def recoveries_under_way(cluster: Cluster) -> bool:
    """Return whether any recovery is open. Needs no lock; the caller locks the cluster's row if True."""
    return Recovery.objects.filter(outcome=RecoveryOutcome.OPEN, job__cluster=cluster).exists()


_UNDER_WAY = PreparedRows(
    lambda cluster_id: (
        Recovery.objects.filter(outcome=RecoveryOutcome.OPEN, job__cluster=cluster_id)
        .select_related("job")
        .order_by("pk")
    )
)


def advance_recoveries(cluster: Cluster, jobs: Collection[str] | None = None) -> None:
    """Execute every due step of open recoveries: those of `jobs`, or all in the cluster.

    An exception rolls back that recovery alone and is logged. OperationalError (a lock conflict or a
    lost connection) is raised, and the caller repeats the whole call.
    """
    for recovery in _UNDER_WAY.ask(cluster.pk):
        if jobs is not None and recovery.job_id not in jobs:
            continue
        try:
            with transaction.atomic():
                advance_recovery(recovery, cluster)
        except OperationalError:
            raise
        except Exception:
            log.exception("recovery step failed", job=recovery.job_id)


def advance_recovery(recovery: Recovery, cluster: Cluster) -> None:
    """Execute every due step of one recovery."""
    bounds = recovery_bounds(cluster)
    for _ in range(MOST_STEPS):
        now = timezone.now()
        rows = recovery_rows(recovery)
        if why := _reason_to_break_off(rows):
            break_off(recovery, why, now)
            return
        _note_successor(rows)
        instruction = next_step(recovery_facts(rows), bounds, now.timestamp())
        if instruction is None or not _HANDLERS[type(instruction)](rows, instruction, cluster, now):
            return


def _note_successor(rows: RecoveryRows) -> None:
    """Store the recovery's successor generation, its sources, and the number of attempts."""
    recovery, successor = rows.recovery, rows.successor
    fields = []
    if recovery.attempts != rows.attempts:
        recovery.attempts = rows.attempts
        fields.append("attempts")
    if successor is not None and recovery.recovering_generation is None:
        note_sources(recovery, successor)
        fields += ["recovering_generation", "sources", "source"]
    if fields:
        recovery.save(update_fields=fields)


def _reason_to_break_off(rows: RecoveryRows) -> str:
    """Return the reason to end the recovery without success, or an empty string.

    Once a successor has been live, there is none.
    """
    job, failed = rows.job, rows.failed
    if rows.successor is not None and rows.successor.live_at is not None:
        return ""
    if job.finished():
        return f"the job is {job.state}"
    if job.paused_by_owner and rows.successor is None:
        return "its owner paused the job"
    announced = rows.recovery.kind == RecoveryKind.ANNOUNCED
    if announced and failed.state == GenerationState.LIVE and failed.goal == Goal.TRAIN:
        return "it trains on where it was"
    return ""


def _move_to(rows: RecoveryRows, instruction: instructions.MoveTo, cluster: Cluster, now: datetime) -> bool:
    recovery, successor = rows.recovery, rows.successor
    if instruction.phase is RecoveryPhase.RUNNING:
        _note_missed(rows)
        if successor is not None:
            conclude(recovery, successor)
        return False
    recovery.phase, recovery.phase_at = instruction.phase.value, began_at(rows, instruction.phase) or now
    setattr(recovery, f"{instruction.phase.value}_at", recovery.phase_at)
    if successor is not None and instruction.phase is RecoveryPhase.SOURCES_CHOSEN:
        note_sources(recovery, successor)
    recovery.save()
    return True


def _note_missed(rows: RecoveryRows) -> None:
    """Store when skipped phases began, except for times after training restarted."""
    live_at = began_at(rows, RecoveryPhase.RUNNING)
    for phase in PHASES[1:-1]:
        began = began_at(rows, phase)
        if rows.recovery.time_of(phase) is None and began is not None and live_at is not None:
            setattr(rows.recovery, f"{phase.value}_at", began if began <= live_at else None)


def _begin_training(
    rows: RecoveryRows, instruction: instructions.ChooseSources, cluster: Cluster, now: datetime
) -> bool:
    """Choose the sources and start training in the prepared successor."""
    successor = rows.successor
    if successor is None or successor.goal != Goal.PREPARE or live_generation(rows.job) is not None:
        return False
    begin_training(successor, rows.job)
    return True


def _begin_anew(
    rows: RecoveryRows, instruction: instructions.BeginAnew, cluster: Cluster, now: datetime
) -> bool:
    """Give up the successor unless it is retired; the planner's next pass creates another.

    The next start avoids memory states whose start failed (`selectors/recovery/memory_points.py`).
    """
    recovery = rows.recovery
    if recovery.recovering_generation is None:
        return False  # it has begun anew already
    successor = rows.job.generations.get(number=recovery.recovering_generation)
    if successor.state != GenerationState.RETIRED:
        give_up(rows.job, instruction.reason, cluster)
        successor = Generation.objects.get(pk=successor.pk)
    begin_anew(recovery, successor.retire_reason, now)
    return True


def _done_elsewhere(
    rows: RecoveryRows, instruction: RecoveryInstruction, cluster: Cluster, now: datetime
) -> bool:
    """Do nothing.

    `StopWorkers`: retiring a generation already orders its workers to stop. `AskForServers`: each pass of the
    planner plans every waiting job. `TrainOn`: ranks train on once they agree on the state.
    """
    return False


_HANDLERS: dict[type[Any], Callable[[RecoveryRows, Any, Cluster, datetime], bool]] = {
    instructions.MoveTo: _move_to,
    instructions.StopWorkers: _done_elsewhere,
    instructions.AskForServers: _done_elsewhere,
    instructions.ChooseSources: _begin_training,
    instructions.BeginAnew: _begin_anew,
    instructions.TrainOn: _done_elsewhere,
}
"""Carries out an instruction. Each handler returns whether another step may be due now."""
