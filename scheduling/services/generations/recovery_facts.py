"""Reads the facts for `recovery.life_cycle` from a recovery's rows, and when each phase began.

A phase begins with the fact that ended the previous one: a GPU confirmed free, GPUs held, a worker's report.
So the time and frequency of these reads do not matter.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import datetime

from cluster.models import Cluster
from recovery.life_cycle.facts import PHASES, RecoveryBounds, RecoveryFacts, RecoveryPhase
from scheduling.choices import AssignmentState, GenerationState, Goal, Purpose, RetireReason
from scheduling.models import Assignment, Generation, Job, Recovery, Worker

#: Phases of a worker that has its state.
LOADED = ("training", "suspended", "handed_over", "completed")
#: How a successor generation ends without having trained.
_FAILED_STARTS = (RetireReason.FAILED, RetireReason.GIVEN_UP, RetireReason.LOST)


@dataclass(frozen=True)
class RecoveryRows:
    """Rows of a recovery, read at one time.

    ``failed``: the generation that failed. ``successor``: the generation that is to replace it, or trains
    already. ``left``: assignments that older generations held. ``workers``: the successor's workers.
    """

    recovery: Recovery
    job: Job
    failed: Generation
    successor: Generation | None
    left: Sequence[Assignment]
    workers: Sequence[Worker]
    attempts: int


def recovery_rows(recovery: Recovery) -> RecoveryRows:
    """Read the rows of a recovery."""
    job = Job.objects.select_related("checkpoint").get(pk=recovery.job_id)
    of_job = list(
        job.generations.filter(number__gte=recovery.failed_generation, purpose=Purpose.TRAINING).order_by(
            "number"
        )
    )
    failed, later = of_job[0], of_job[1:]
    successor = next((one for one in later if one.live_at is not None), None)
    if successor is None:
        successor = next((one for one in later if one.state != GenerationState.RETIRED), None)
    older = [one for one in of_job if successor is None or one.number < successor.number]
    before = [one for one in older if one is not failed and one.live_at is None]
    attempts = [
        one
        for one in before
        if one.held_at is not None
        and one.retired_because in _FAILED_STARTS
        # A change that failed at the same time was not part of the recovery.
        and one.retired_at is not None
        and one.retired_at > recovery.detected_at
    ]
    workers = [] if successor is None else list(Worker.objects.filter(generation=successor))
    left = list(Assignment.objects.filter(generation__in=older, held_at__isnull=False))
    return RecoveryRows(recovery, job, failed, successor, left, workers, len(attempts))


def recovery_bounds(cluster: Cluster) -> RecoveryBounds:
    """Return the bounds of a generation's own steps. There is none for stopping workers: the planner counts
    the GPUs that they hold, and a new start would not free these.
    """
    seconds = cluster.prepare_timeout_seconds + cluster.handover_timeout_seconds
    return RecoveryBounds(
        freeze_seconds=None, prepare_seconds=seconds, load_seconds=seconds, start_seconds=seconds
    )


def recovery_facts(rows: RecoveryRows) -> RecoveryFacts:
    """Return the facts of a recovery. A server is lost once it is fenced; before, its ranks are silent
    survivors.
    """
    recovery, failed, successor = rows.recovery, rows.failed, rows.successor
    ranks = failed.world_size
    holding = {one.rank for one in rows.left if one.state != AssignmentState.RELEASED}
    lost = frozenset(rank for rank in recovery.lost_ranks if rank < ranks)
    gone = frozenset(range(ranks)) - holding
    loaded = {one.rank for one in rows.workers if one.phase in LOADED}
    number = successor.number if successor is not None else None
    return RecoveryFacts(
        RecoveryPhase(recovery.phase),
        generation=number or failed.number,
        ranks=ranks,
        phase_since=recovery.phase_at.timestamp(),
        failed=lost,
        stopped=gone - lost,
        fenced=gone & lost,
        resourced=frozenset(range(ranks)) if successor is not None and successor.held_at else frozenset(),
        sources_chosen=successor is not None and successor.goal != Goal.PREPARE and bool(successor.start),
        started=frozenset(one.rank for one in rows.workers if one.ready_at is not None),
        loaded=tuple((rank, successor.start_iteration) for rank in sorted(loaded)) if successor else (),
        training=successor is not None and successor.live_at is not None,
        attempts=rows.attempts,
        placed_anew=True,
        readers=None if successor is None else successor.world_size,
        given_up=recovery.recovering_generation is not None and recovery.recovering_generation != number,
    )


def began_at(rows: RecoveryRows, phase: RecoveryPhase) -> datetime | None:
    """Return when the facts that begin a phase became true; None if that is not known.

    No phase begins before the previous one.
    """
    own = _fact_time(rows, phase)
    if own is None:
        return None
    before = [rows.recovery.time_of(one) for one in PHASES[: PHASES.index(phase)]]
    return max([own, *(time for time in before if time is not None)])


def _fact_time(rows: RecoveryRows, phase: RecoveryPhase) -> datetime | None:
    successor = rows.successor
    if phase is RecoveryPhase.FROZEN:
        ends = [one.released_at for one in rows.left]
        known = [end for end in ends if end is not None]
        return max(known, default=None) if len(known) == len(ends) else None
    if successor is None:
        return None
    if phase is RecoveryPhase.RESOURCED:
        return successor.held_at
    if phase in (RecoveryPhase.SOURCES_CHOSEN, RecoveryPhase.STARTING):
        # The start order exists from the beginning; workers may start once all GPUs are held.
        return successor.held_at if successor.start else None
    if phase is RecoveryPhase.LOADING:
        ready = [one.ready_at for one in rows.workers if one.ready_at is not None]
        return max(ready) if len(ready) == successor.world_size else None
    if phase is RecoveryPhase.VERIFIED:
        loaded = [one.changed_at for one in rows.workers if one.phase in LOADED]
        return max(loaded) if len(loaded) == successor.world_size else None
    return successor.live_at
