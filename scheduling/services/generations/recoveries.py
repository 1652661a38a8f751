"""Rows of recoveries: when one begins, what was lost, and how it ends. Callers hold the cluster's row.

`recovering.py` carries recoveries out. Nothing here restarts anything: generations do.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from cluster.choices import ServerState
from cluster.models import Server
from recovery.life_cycle.facts import PHASES, RecoveryPhase
from scheduling.choices import (
    AssignmentState,
    JobEventKind,
    Purpose,
    RecoveryKind,
    RecoveryOutcome,
    StateSource,
)
from scheduling.core.question.quantities import duration_text
from scheduling.models import Assignment, Generation, Job, Recovery
from scheduling.selectors.recovery.memory_points import PointsInMemory
from scheduling.selectors.recovery.state_sources import sources_of
from scheduling.services.rows.records import record

#: Servers that fall silent within this time of each other count as one loss.
SIMULTANEOUS = timedelta(seconds=2)


def begin_recovery(job: Job, generation: Generation, reason: str, now: datetime) -> Recovery:
    """Store that a training generation is lost. A second call returns the row of the first.

    The time of detection is when its server was found silent, if that was earlier.
    """
    for earlier in job.recoveries.filter(outcome=RecoveryOutcome.OPEN).exclude(
        failed_generation=generation.number
    ):
        conclude(earlier, generation)  # the generation trained, so it had recovered from the earlier failure
    silent = Server.objects.filter(
        gpus__assignments__generation=generation, state=ServerState.SUSPECT
    ).values_list("state_changed_at", flat=True)
    found, new = Recovery.objects.get_or_create(
        job=job,
        failed_generation=generation.number,
        defaults={
            "reason": reason[:300],
            "iteration_reached": job.iterations_done,
            "iterations_per_second": job.iterations_per_second or 0.0,
            "detected_at": min([now, *silent]),
            "phase_at": now,
        },
    )
    if not new and found.kind == RecoveryKind.ANNOUNCED and found.outcome == RecoveryOutcome.OPEN:
        # It failed while leaving in order. Whether a server was lost is found out later.
        found.kind, found.reason = RecoveryKind.SOFTWARE, reason[:300]
        found.lost_servers, found.lost_ranks = [], []
        found.iteration_reached = max(found.iteration_reached, job.iterations_done)
        found.save(update_fields=["kind", "reason", "lost_servers", "lost_ranks", "iteration_reached"])
    return found


def announce_recovery(job: Job, generation: Generation, now: datetime) -> None:
    """Store that a generation stops in order because one of its servers leaves: an announced failure."""
    leaving = [server for server in _servers(generation) if not server.open_to_training()]
    if not leaving or job.recoveries.filter(outcome=RecoveryOutcome.OPEN).exists():
        return
    names = ", ".join(server.name for server in leaving)
    Recovery.objects.get_or_create(
        job=job,
        failed_generation=generation.number,
        defaults={
            "kind": RecoveryKind.ANNOUNCED,
            "reason": f"{names} leaves"[:300],
            "lost_servers": [_lost(server, None, None) for server in leaving],
            "lost_ranks": _ranks_on(generation, [server.pk for server in leaving]),
            "iteration_reached": job.iterations_done,
            "iterations_per_second": job.iterations_per_second or 0.0,
            "detected_at": now,
            "phase_at": now,
        },
    )


def note_lost_server(server: Server, silent_since: datetime, now: datetime) -> list[Recovery]:
    """Mark every recovery of work on a fenced server as one of hardware, even if the job trains again
    already. Return these recoveries.

    Call it before the server's GPUs are freed.
    """
    held = Assignment.objects.filter(gpu__server=server).exclude(state=AssignmentState.RELEASED)
    training = Generation.objects.filter(pk__in=held.values("generation"), purpose=Purpose.TRAINING)
    touched = []
    for generation in training.order_by("pk"):
        found = _recovery_after(generation)
        if found is not None and all(one["server"] != server.pk for one in found.lost_servers):
            _add_lost(found, generation, server, silent_since, now)
            touched.append(found)
    return touched


def _recovery_after(generation: Generation) -> Recovery | None:
    """Return the recovery from the generation's failure, or the open one that it was to complete."""
    of_job = Recovery.objects.filter(job=generation.job_id)
    own = of_job.filter(failed_generation=generation.number).first()
    open_ones = of_job.filter(outcome=RecoveryOutcome.OPEN, failed_generation__lt=generation.number)
    return own or open_ones.first()


def _add_lost(
    found: Recovery, generation: Generation, server: Server, silent_since: datetime, now: datetime
) -> None:
    known = [datetime.fromisoformat(one["silent_at"]) for one in found.lost_servers if one["silent_at"]]
    first_loss = generation.number == found.failed_generation and not known
    if not first_loss and all(abs(silent_since - one) > SIMULTANEOUS for one in known):
        found.losses += 1
    found.kind = RecoveryKind.HARDWARE
    found.lost_servers = [*found.lost_servers, _lost(server, silent_since, now)]
    if generation.number == found.failed_generation:
        found.lost_ranks = sorted({*found.lost_ranks, *_ranks_on(generation, [server.pk])})
        found.detected_at = min(found.detected_at, silent_since)
    found.fenced_at = now
    found.save(update_fields=["losses", "kind", "lost_servers", "lost_ranks", "detected_at", "fenced_at"])


def _lost(server: Server, silent_at: datetime | None, fenced_at: datetime | None) -> dict[str, Any]:
    return {
        "server": server.pk,
        "name": server.name,
        "silent_at": silent_at and silent_at.isoformat(),
        "fenced_at": fenced_at and fenced_at.isoformat(),
    }


def _servers(generation: Generation) -> list[Server]:
    return list(Server.objects.filter(gpus__assignments__generation=generation).distinct())


def _ranks_on(generation: Generation, servers: Sequence[int]) -> list[int]:
    ranks = Assignment.objects.filter(
        generation=generation, gpu__server__in=servers, rank__lt=generation.world_size
    )
    return sorted(ranks.values_list("rank", flat=True))


def conclude(found: Recovery, generation: Generation) -> None:
    """End the recovery: the job trains again, with this generation."""
    note_sources(found, generation)
    found.phase, found.outcome = RecoveryPhase.RUNNING.value, RecoveryOutcome.RECOVERED
    found.iteration_resumed = generation.start_iteration
    found.running_at = found.phase_at = found.ended_at = max(
        generation.live_at or found.detected_at, found.detected_at
    )
    found.save()
    came_from = StateSource(found.source or StateSource.NONE).label.lower()
    record(
        found.job,
        JobEventKind.RECOVERED,
        f"Trains again {duration_text(found.down_seconds(found.running_at))} after the failure was noticed, "
        f"from iteration {found.iteration_resumed} ({came_from}), and repeats {found.iterations_lost()} "
        "iterations.",
        generation=generation.number,
    )


def break_off(found: Recovery, why: str, now: datetime) -> None:
    """End the recovery without success: the job will not train again, or not for this reason."""
    found.outcome, found.broken_off_because = RecoveryOutcome.BROKEN_OFF, why[:200]
    found.ended_at = found.phase_at = max(now, found.detected_at)
    found.save(update_fields=["outcome", "broken_off_because", "ended_at", "phase_at"])


def begin_anew(found: Recovery, why: str, now: datetime) -> None:
    """Return to the first phase after an attempt has failed, and forget that attempt's facts."""
    found.phase, found.phase_at = RecoveryPhase.DETECTED.value, now
    found.recovering_generation, found.last_attempt = None, why[:300]
    found.sources, found.source = [], ""
    for phase in PHASES[1:]:
        setattr(found, f"{phase.value}_at", None)
    found.save()


def note_sources(found: Recovery, generation: Generation) -> None:
    """Store from where each rank of the successor takes its state."""
    found.recovering_generation = generation.number
    members = generation.assignments.filter(rank__lt=generation.world_size).order_by("rank")
    found.sources = sources_of(generation.start, list(members.values_list("gpu__server_id", flat=True)))
    order = list(StateSource)
    farthest = max((order.index(StateSource(one["source"])) for one in found.sources), default=None)
    found.source = "" if farthest is None else order[farthest]


def words_on_going_on(job: Job, durable: int) -> str:
    """Return a sentence for the history: from which iteration a job that lost its GPUs will go on."""
    of_job = job.generations.filter(purpose=Purpose.TRAINING, live_at__isnull=False)
    last = of_job.order_by("-number").first()
    servers = [] if last is None else [server.pk for server in _servers(last)]
    point = PointsInMemory([job]).newest(job, servers)
    if point is None:
        return f"Goes on from iteration {durable} as soon as it has GPUs again."
    return (
        f"Goes on from iteration {point.iteration}, which is in the memory of servers, or a later one as "
        f"soon as it has GPUs again; if that cannot be read, from iteration {durable}, which is durable."
    )
