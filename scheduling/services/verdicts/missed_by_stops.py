"""Records promises that were missed because the platform was stopped: in jobs' histories, and one incident
for each outage."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta

from django.db.models import F, Value
from django.db.models.functions import Concat, Left

from cluster.models import Cluster
from cluster.selectors.outages import Stopped, outages_between, stopped_seconds
from scheduling.models import Incident, Job
from scheduling.moments import moment
from scheduling.services.rows.wakeups import hint
from scheduling.services.verdicts.incidents import MOST_DETAIL_CHARACTERS

#: Tolerance for the beginning of an outage, which is read at different times.
_SAME_OUTAGE = timedelta(seconds=1)


def stops_to_blame(cluster: Cluster, overdue: Sequence[Job], now: datetime) -> dict[str, Stopped]:
    """Return the last outage of each job that would have met its deadline without outages.

    Its plan is late by no more than the platform was stopped between promise and deadline.

    Args:
        overdue: jobs whose deadline has passed, without their plans.
    """
    if not overdue:
        return {}
    outages = outages_between(cluster.pk, min(_promised_at(job) for job in overdue), now)
    if not outages:
        return {}
    finishes: Mapping[str, object] = dict(
        Job.objects.filter(pk__in=[job.pk for job in overdue]).values_list("pk", "plan__finish_at")
    )
    found = {}
    for job in overdue:
        assert job.deadline_at is not None, "it has passed"
        finish_at = finishes.get(job.pk)
        finish = moment(finish_at) if isinstance(finish_at, int | float) else None
        stopped = stopped_seconds(outages, _promised_at(job), job.deadline_at)
        if finish is not None and 0 < stopped >= (finish - job.deadline_at).total_seconds():
            found[job.pk] = next(
                outage for outage in reversed(outages) if outage.stopped_at < job.deadline_at
            )
    return found


def _promised_at(job: Job) -> datetime:
    return job.decided_at or job.submitted_at


def note_stops(cluster: Cluster, missed: Mapping[Stopped, Sequence[Job]], now: datetime) -> None:
    """Record the promises that each outage broke in one incident, resolved at the outage's end."""
    for outage, jobs in missed.items():
        lines = "".join(f"{job.pk} {job.name}\n" for job in jobs)
        known = Incident.objects.filter(
            cluster=cluster,
            kind=Incident.Kind.STOPPED,
            first_at__range=(outage.stopped_at - _SAME_OUTAGE, outage.stopped_at + _SAME_OUTAGE),
        )
        seen = known.update(
            count=F("count") + len(jobs),
            detail=Left(Concat("detail", Value(lines)), MOST_DETAIL_CHARACTERS),
            last_at=now,
        )
        if not seen:
            Incident.objects.create(
                cluster=cluster,
                kind=Incident.Kind.STOPPED,
                message=f"Promises were missed because the platform was stopped {outage}",
                detail=lines[:MOST_DETAIL_CHARACTERS],
                count=len(jobs),
                first_at=outage.stopped_at,
                last_at=now,
                resolved_at=outage.started_at,
            )
        hint(f"cluster:{cluster.pk}", kind="planned")
