"""Raises incidents for jobs that do not train again and for states that lack copies in memory for too long.

The limit is measured: two recovery times, where a recovery time is the median of the last recoveries. Before
the first recovery it follows from the cluster's bounds. The time until a silent server is fenced is added,
since nothing can be done before.
"""

from __future__ import annotations

from datetime import datetime
from statistics import median
from typing import Any

from django.db.models import Exists, QuerySet

from cluster.choices import ServerState
from cluster.models import Cluster, Gpu
from cluster.selectors.outages import outages_between, stopped_seconds
from projects.prepared import PreparedValues
from scheduling.choices import (
    AssignmentState,
    GenerationState,
    ProtectionState,
    Purpose,
    RecoveryKind,
    RecoveryOutcome,
)
from scheduling.core.question.quantities import duration_text
from scheduling.models import Assignment, Incident, Job, JobProtection, Recovery
from scheduling.selectors.recovery.memory_states import REPORTS_SECONDS, MemoryState, memory_states
from scheduling.services.verdicts.incidents import resolve, saw_once

#: Latest recoveries that are measured.
LATEST = 20
#: Bounds of a plausible recovery time: a single recovery is no measure, nor is a job that waited for days.
SHORTEST_SECONDS = 15.0
LONGEST_SECONDS = 900.0
#: Recovery times that a job may be without training, or a state without its copies.
RECOVERY_TIMES = 2


def recovery_seconds(cluster: Cluster) -> float:
    """Return the seconds of a recovery, from when it could begin until the job trained again."""
    latest = Recovery.objects.filter(job__cluster=cluster, outcome=RecoveryOutcome.RECOVERED)
    times = latest.exclude(kind=RecoveryKind.ANNOUNCED).order_by("-ended_at")[:LATEST]
    seconds = [
        max(0.0, (one.ended_at - _since(one, one.ended_at)).total_seconds())
        for one in times
        if one.ended_at is not None
    ]
    if not seconds:
        return cluster.fence_seconds + cluster.fence_margin_seconds + cluster.prepare_timeout_seconds
    return min(max(median(seconds), SHORTEST_SECONDS), LONGEST_SECONDS)


def _since(one: Recovery, now: datetime) -> datetime:
    """Return when the recovery could begin: a lost server has to be fenced first."""
    fenced_at = one.fenced_at
    return one.detected_at if fenced_at is None or fenced_at > now else max(one.detected_at, fenced_at)


def patience_with_recoveries(cluster: Cluster) -> float:
    """Return the seconds that a recovery may take. Workers may notice a server's loss before it is found
    silent.
    """
    return cluster.suspect_seconds + RECOVERY_TIMES * recovery_seconds(cluster)


def patience_with_copies(cluster: Cluster) -> float:
    """Return the seconds that copies may be missing. Copies on a silent server are placed anew once it is
    fenced.
    """
    fence_seconds = cluster.fence_seconds + cluster.fence_margin_seconds
    return fence_seconds + RECOVERY_TIMES * recovery_seconds(cluster)


_TOLD_OF_RECOVERIES = (
    "detected_at", "fenced_at", "failed_generation", "recovering_generation", "reason", "phase", "attempts",
    "job__promised",
)  # fmt: skip


_WATCHED = (Incident.Kind.TOO_OLD, Incident.Kind.UNRECOVERED, Incident.Kind.UNPROTECTED)


def _training(cluster_id: int) -> QuerySet[Job]:
    return Job.objects.filter(
        cluster=cluster_id,
        generations__purpose=Purpose.TRAINING,
        generations__state=GenerationState.LIVE,
    )


def _with_something_to_watch(cluster_id: int) -> QuerySet[Cluster, Any]:
    some = (
        Exists(_training(cluster_id))
        | Exists(JobProtection.objects.filter(job__cluster=cluster_id))
        | Exists(Recovery.objects.filter(job__cluster=cluster_id, outcome=RecoveryOutcome.OPEN))
        | Exists(Incident.objects.filter(cluster=cluster_id, kind__in=_WATCHED, resolved_at__isnull=True))
    )
    return Cluster.objects.filter(some, pk=cluster_id).values_list("pk")


_WATCHING = PreparedValues(_with_something_to_watch)


def anything_to_watch(cluster: Cluster) -> bool:
    """Return whether `watch_protection` may have something to do."""
    return _WATCHING.any(cluster.pk)


def watch_protection(cluster: Cluster, now: datetime) -> None:
    """Store since when each training job has its protection state, and raise incidents for what lasts too
    long.
    """
    states = memory_states(_training(cluster.pk).select_related("checkpoint"))
    since = _note_states(cluster, states, now)
    open_ones = Recovery.objects.filter(job__cluster=cluster, outcome=RecoveryOutcome.OPEN)
    recovering = list(open_ones.select_related("job").only(*_TOLD_OF_RECOVERIES))
    lacking = {job_id: state for job_id, state in states.items() if _lacks(state)}
    begins = [one.detected_at for one in recovering] + [since[job_id].since for job_id in lacking]
    outages = outages_between(cluster.pk, min(begins), now) if begins else []

    def lasts(begin: datetime) -> float:
        """Return the seconds since `begin`, without those in which the platform was stopped."""
        return (now - begin).total_seconds() - stopped_seconds(outages, begin, now)

    late: set[str] = set()
    if recovering:
        patience = patience_with_recoveries(cluster)
        usable = Gpu.objects.usable().filter(server__cluster=cluster).exists()
        to_be_fenced = _waiting_for_a_fence(recovering)
        for one in recovering:
            waits = one.job_id in to_be_fenced or (usable and _in_the_queue(one))
            if lasts(_since(one, now)) > patience and not waits:
                late.add(one.job_id)
                _tell_of_recovery(cluster, one, now)
    unprotected: set[str] = set()
    if lacking:
        patience = patience_with_copies(cluster)
        for job_id, state in lacking.items():
            begin = since[job_id].since
            if lasts(begin) > patience + _first_point_seconds(state):
                unprotected.add(job_id)
                _tell_of_copies(cluster, state, begin, now)
    lasting: dict[str, set[str]] = {
        Incident.Kind.TOO_OLD: _too_old(cluster, states, now),
        Incident.Kind.UNRECOVERED: late,
        Incident.Kind.UNPROTECTED: unprotected,
    }
    resolve(cluster, lasting, now)


def _waiting_for_a_fence(recovering: list[Recovery]) -> set[str]:
    """Return jobs with a silent server that is not fenced yet: its GPUs may still be in use."""
    first = {one.job_id: one.failed_generation for one in recovering}
    silent = Assignment.objects.filter(job__in=first, gpu__server__state=ServerState.SUSPECT).exclude(
        state=AssignmentState.RELEASED
    )
    rows = silent.values_list("job_id", "generation__number")
    return {job_id for job_id, number in rows if number >= first[job_id]}


def _lacks(state: MemoryState) -> bool:
    """Return whether memory holds less of a training job's state than ordered."""
    if state.protection == ProtectionState.NONE:
        return state.ordered > 0 and (state.job.iterations_per_second or 0.0) > 0.0
    return bool(state.lacking) and state.protection == ProtectionState.DEGRADED


def _first_point_seconds(state: MemoryState) -> float:
    """Return the seconds until the first point: the iteration after which it is made, and the next one."""
    return 2.0 / (state.job.iterations_per_second or 1.0) if state.protection == ProtectionState.NONE else 0.0


def _in_the_queue(one: Recovery) -> bool:
    """Return whether the job waits for GPUs that promised jobs take first. A job without a promise may wait
    long, and its state is kept.
    """
    return one.recovering_generation is None and not one.job.promised


def _too_old(cluster: Cluster, states: dict[str, MemoryState], now: datetime) -> set[str]:
    """Return promised jobs whose newest safe state is older than promised, and raise incidents."""
    found: set[str] = set()
    for job_id, state in states.items():
        job = state.job
        if not (cluster.reserve_servers and job.promised and job.protection_class):
            continue
        most = job.protection_class["lost_seconds"] + REPORTS_SECONDS
        worst = max(state.losses(), key=lambda loss: loss.seconds or 0.0, default=None)
        if worst is not None and (worst.seconds or 0.0) > most:
            found.add(job_id)
            message = (
                f"If {worst.name} were lost now, the job would repeat {duration_text(worst.seconds or 0.0)} "
                f"of training; its promise allows for {duration_text(most)}"
            )
            saw_once(cluster, Incident.Kind.TOO_OLD, message, job=job, now=now)
    return found


def _note_states(cluster: Cluster, states: dict[str, MemoryState], now: datetime) -> dict[str, JobProtection]:
    """Store the protection state of each training job when it changes. Return the rows by job id."""
    known = {row.job_id: row for row in JobProtection.objects.filter(job__cluster=cluster)}
    gone = [row.pk for job_id, row in known.items() if job_id not in states]
    if gone:
        JobProtection.objects.filter(pk__in=gone).delete()
    for job_id, state in states.items():
        row = known.get(job_id)
        if row is None or row.state != state.protection:
            known[job_id], _ = JobProtection.objects.update_or_create(
                job_id=job_id, defaults={"state": state.protection, "since": now}
            )
    return known


def _tell_of_recovery(cluster: Cluster, one: Recovery, now: datetime) -> None:
    waits = "waits for GPUs" if one.recovering_generation is None else f"is in phase {one.phase}"
    message = (
        f"It does not train since {one.detected_at:%H:%M:%S} UTC ({one.reason}) and {waits}; "
        f"{one.attempts} attempts failed"
    )
    saw_once(cluster, Incident.Kind.UNRECOVERED, message, job=one.job, now=now)


def _tell_of_copies(cluster: Cluster, state: MemoryState, since: datetime, now: datetime) -> None:
    if state.protection == ProtectionState.NONE:
        what = f"Of {state.ordered} copies of its state that were ordered in memory none counts"
    else:
        ranks = ", ".join(map(str, state.lacking[:10]))
        what = f"The states of ranks {ranks} have fewer copies in memory than ordered"
    why = f" ({state.reason})" if state.reason else ""
    message = f"{what} since {since:%H:%M:%S} UTC{why}"
    saw_once(cluster, Incident.Kind.UNPROTECTED, message, job=state.job, now=now)
