"""State changes of a job and the entries they leave in its history."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from django.db.models import F
from django.utils import timezone

from cluster.models import Cluster
from projects.prepared import PreparedRows
from scheduling.choices import JOB_TRANSITIONS, TERMINAL_STATES, JobState
from scheduling.models import Decision, Job, JobEvent
from scheduling.services.rows.bulk import update_rows
from scheduling.services.rows.wakeups import hint, hint_all


class ForbiddenTransition(Exception):
    """A state change that is not in the table of transitions. This is a defect, never a user's fault."""


_CLUSTER = PreparedRows(lambda cluster_id: Cluster.objects.filter(pk=cluster_id))
_LOCKED = PreparedRows(
    lambda cluster_id: Cluster.objects.select_for_update(no_key=True).filter(pk=cluster_id)
)


def read_cluster(cluster_id: int) -> Cluster:
    """Return the cluster's present row. Raise Cluster.DoesNotExist if there is none."""
    return _CLUSTER.get(cluster_id)


def lock_cluster(cluster_id: int) -> Cluster:
    """Lock the cluster's row. Every change of a planning fact holds this lock, in commit order. Raise
    Cluster.DoesNotExist if there is no row."""
    return _LOCKED.get(cluster_id)


def planning_fact_changed(cluster: Cluster) -> None:
    """Increment the planning version, so that plans computed from earlier facts are not committed."""
    Cluster.objects.filter(pk=cluster.pk).update(planning_version=F("planning_version") + 1)


def record(
    job: Job,
    kind: str,
    message: str,
    *,
    actor: str = "",
    decision: Decision | None = None,
    **detail: Any,
) -> JobEvent:
    """Add one line to the job's history."""
    hint(f"job:{job.pk}", kind="changed")
    return JobEvent.objects.create(
        job=job, kind=kind, message=message, actor=actor, decision=decision, detail=detail
    )


def move(
    job: Job,
    state: JobState,
    message: str,
    *,
    actor: str = "",
    decision: Decision | None = None,
    **detail: Any,
) -> None:
    """Move the job to ``state`` and record why. The caller holds the cluster's row and saves other fields
    itself.

    Raises:
        ForbiddenTransition: the table of transitions has no such step.
    """
    if state == job.state:
        return
    before = _enter(job, state)
    fields = ["state"]
    if state in TERMINAL_STATES:
        fields.append("finished_at")
    if state == JobState.RUNNING and job.started_at is None:
        job.started_at = timezone.now()
        fields.append("started_at")
    job.save(update_fields=fields)
    hint(f"cluster:{job.cluster_id}", kind="jobs")
    record(job, state, message, actor=actor, decision=decision, before=before, **detail)


@dataclass(frozen=True)
class Move:
    """A state change of one of many jobs, with its entry in the history."""

    job: Job
    state: JobState
    #: The reason in a sentence.
    message: str
    #: The reason's facts by name.
    detail: dict[str, Any]


def move_all(moves: Sequence[Move], *, fields: Sequence[str], decision: Decision | None = None) -> None:
    """Call `move` for many jobs in a few queries. ``fields``: further fields to save.

    Raises:
        ForbiddenTransition: the table of transitions has no such step.
    """
    if not moves:
        return
    events = []
    for one in moves:
        before = _enter(one.job, one.state)
        detail = {"before": before, **one.detail}
        events.append(
            JobEvent(job=one.job, kind=one.state, message=one.message, decision=decision, detail=detail)
        )
    update_rows([one.job for one in moves], ["state", "finished_at", *fields])
    JobEvent.objects.bulk_create(events, batch_size=500)
    hint_all([(f"job:{one.job.pk}", "changed") for one in moves])
    hint_all([(f"cluster:{cluster_id}", "jobs") for cluster_id in {one.job.cluster_id for one in moves}])


@dataclass(frozen=True)
class JobNote:
    """A history entry of one of many jobs."""

    job: Job
    kind: str
    #: The event in a sentence.
    message: str
    #: The event's facts by name.
    detail: dict[str, Any]


def record_all(notes: Sequence[JobNote], *, decision: Decision | None = None) -> None:
    """Call `record` for many jobs in one query."""
    if not notes:
        return
    JobEvent.objects.bulk_create(
        [
            JobEvent(
                job=note.job, kind=note.kind, message=note.message, decision=decision, detail=note.detail
            )
            for note in notes
        ],
        batch_size=500,
    )
    hint_all([(f"job:{note.job.pk}", "changed") for note in notes])


def _enter(job: Job, state: JobState) -> str:
    """Set the state without saving. Return the previous one."""
    if state not in JOB_TRANSITIONS[JobState(job.state)]:
        raise ForbiddenTransition(f"job {job.pk}: {job.state} to {state}")
    before: str = job.state
    job.state = state
    if state in TERMINAL_STATES:
        job.finished_at = timezone.now()
    return before
