"""What takes longer than it may: jobs that do not train again, states in memory that lack copies. Operators
are told by incidents.

How long that is, is measured: two recovery times, the median of the last recoveries. Before there are any,
what the cluster's own bounds allow.
"""

from __future__ import annotations

from datetime import datetime, timedelta
from statistics import median

from cluster.models import Cluster, Gpu
from cluster.selectors.outages import outages_between, stopped_seconds
from scheduling.choices import GenerationState, ProtectionState, Purpose, RecoveryKind, RecoveryOutcome
from scheduling.models import Incident, Job, JobProtection, Recovery
from scheduling.selectors.memory_states import MemoryState, memory_states
from scheduling.services.incidents import resolve, saw_once

#: Recoveries of which the time is taken.
LATEST = 20
#: A recovery time outside of these is not believed: one is no measure, nor is a job that waited for days.
SHORTEST_SECONDS = 15.0
LONGEST_SECONDS = 900.0
#: What is kept is reported so much later.
REPORTS_SECONDS = 10.0
#: So many of them may a job be without training, or a state without its copies.
RECOVERY_TIMES = 2


def recovery_seconds(cluster: Cluster) -> float:
    """How long a recovery takes here, from detection until the job trains again."""
    latest = Recovery.objects.filter(job__cluster=cluster, outcome=RecoveryOutcome.RECOVERED)
    times = latest.exclude(kind=RecoveryKind.ANNOUNCED).order_by("-ended_at")[:LATEST]
    seconds = [one.down_seconds(one.detected_at) for one in times]
    if not seconds:
        return cluster.fence_seconds + cluster.fence_margin_seconds + cluster.prepare_timeout_seconds
    return min(max(median(seconds), SHORTEST_SECONDS), LONGEST_SECONDS)


_TOLD_OF_RECOVERIES = (
    "detected_at", "recovering_generation", "reason", "phase", "attempts", "job__promised",
)  # fmt: skip


def watch_protection(cluster: Cluster, now: datetime) -> None:
    """Note since when each training job is protected as it is, and tell what has lasted too long."""
    training = Job.objects.filter(
        cluster=cluster,
        generations__purpose=Purpose.TRAINING,
        generations__state=GenerationState.LIVE,
    )
    states = memory_states(training.select_related("checkpoint"))
    since = _note_states(cluster, states, now)
    open_ones = Recovery.objects.filter(job__cluster=cluster, outcome=RecoveryOutcome.OPEN)
    recovering = list(open_ones.select_related("job").only(*_TOLD_OF_RECOVERIES))
    lacking = [
        state
        for job_id, state in states.items()
        if state.lacking and since[job_id].state == ProtectionState.DEGRADED
    ]
    late: set[str] = set()
    unprotected: set[str] = set()
    if recovering or lacking:
        patience = timedelta(seconds=RECOVERY_TIMES * recovery_seconds(cluster))
        usable = Gpu.objects.usable().filter(server__cluster=cluster).exists()
        begins = [one.detected_at for one in recovering] + [since[state.job.pk].since for state in lacking]
        outages = outages_between(cluster.pk, min(begins), now)

        def lasts_too_long(begin: datetime) -> bool:
            stopped = timedelta(seconds=stopped_seconds(outages, begin, now))
            return now - begin - stopped > patience

        for one in recovering:
            if lasts_too_long(one.detected_at) and not (usable and _in_the_queue(one)):
                late.add(one.job_id)
                _tell_of_recovery(cluster, one, now)
        for state in lacking:
            if lasts_too_long(since[state.job.pk].since):
                unprotected.add(state.job.pk)
                _tell_of_copies(cluster, state, since[state.job.pk].since, now)
    lasting: dict[str, set[str]] = {
        Incident.Kind.TOO_OLD: _too_old(cluster, states, now),
        Incident.Kind.UNRECOVERED: late,
        Incident.Kind.UNPROTECTED: unprotected,
    }
    resolve(cluster, lasting, now)


def _in_the_queue(one: Recovery) -> bool:
    """Whether the job waits for GPUs that promises to others take first: with no promise of its own it may
    wait for long, and its state is kept."""
    return one.recovering_generation is None and not one.job.promised


def _too_old(cluster: Cluster, states: dict[str, MemoryState], now: datetime) -> set[str]:
    """Promised jobs whose newest safe state is older than their promise counts on; operators are told."""
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
                f"Were {worst.name} lost now, it would train {worst.seconds:.0f} s again; its promise counts "
                f"on {most:.0f} s at most"
            )
            saw_once(cluster, Incident.Kind.TOO_OLD, message, job=job, now=now)
    return found


def _note_states(cluster: Cluster, states: dict[str, MemoryState], now: datetime) -> dict[str, JobProtection]:
    """A row for each job that trains, written when its protection changes."""
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
    ranks = ", ".join(map(str, state.lacking[:10]))
    message = (
        f"The states of ranks {ranks} have fewer copies in memory than ordered since {since:%H:%M:%S} UTC"
    )
    saw_once(cluster, Incident.Kind.UNPROTECTED, message, job=state.job, now=now)
