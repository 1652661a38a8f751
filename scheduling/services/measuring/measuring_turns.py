"""Jobs that make way for measurements, each at most once a minute, and jobs whose measurement waits for
that."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

from django.db.models import Max

from cluster.models import Cluster
from scheduling.choices import UNDECIDED_STATES, JobEventKind
from scheduling.core.placement.making_way import ONCE_IN_SECONDS
from scheduling.models import Job, JobEvent
from scheduling.services.rows.records import record
from scheduling.stored_verdict import AnswerCode, pending

_TOLD = {"verdict__decision": "pending", "verdict__reason_code": AnswerCode.MEASURING_TURN}


def made_way_lately(cluster: Cluster, now: datetime) -> dict[str, float]:
    """Return when each job was last suspended for a measurement, in Unix seconds by id, while it may not
    be again."""
    since = now - timedelta(seconds=ONCE_IN_SECONDS)
    lately = JobEvent.objects.filter(
        kind=JobEventKind.MADE_WAY, happened_at__gt=since, job__cluster=cluster
    ).order_by()
    return {job_id: at.timestamp() for job_id, at in lately.values_list("job").annotate(Max("happened_at"))}


def note_made_way(job: Job, measured: Job) -> None:
    """Record that ``job`` gives up its GPUs for a measurement for ``measured``."""
    bound = f"for no other within {ONCE_IN_SECONDS:g} s"
    record(job, JobEventKind.MADE_WAY, f"Makes way for a measurement for job {measured.pk}, and {bound}.")


def note_turns(cluster: Cluster, turns: dict[str, float]) -> None:
    """Set the verdict of jobs whose measurement waits for jobs that may not make way yet; clear it for
    others.

    ``turns``: when the first of these may make way again, by the id of the waiting job.
    """
    told = Job.objects.filter(cluster=cluster, state__in=UNDECIDED_STATES, **_TOLD)
    waiting = Job.objects.filter(pk__in=turns).values_list("pk", "curve_id")
    curves = {curve_id: turns[job_id] for job_id, curve_id in waiting if curve_id is not None}
    told.exclude(curve__in=curves).update(verdict=None)
    for curve_id, at in curves.items():
        verdict = pending(AnswerCode.MEASURING_TURN, _why_it_waits(at)).as_json()
        alike = Job.objects.filter(curve=curve_id, state__in=UNDECIDED_STATES)
        alike.filter(verdict__isnull=True).update(verdict=verdict)


def forget_turn(job: Job) -> None:
    """Clear the verdict "waits for its turn" of undecided jobs with the job's curve."""
    Job.objects.filter(curve=job.curve_id, state__in=UNDECIDED_STATES, **_TOLD).update(verdict=None)
    if job.verdict and job.verdict.get("reason_code") == AnswerCode.MEASURING_TURN:
        job.verdict = None


def _why_it_waits(at: float) -> str:
    turn = datetime.fromtimestamp(at, UTC)
    return (
        "Not measured yet: the jobs on the GPUs that it needs made way for another measurement less than "
        f"{ONCE_IN_SECONDS:g} s ago; its turn comes at {turn:%H:%M:%S} UTC at the earliest."
    )
