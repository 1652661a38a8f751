"""Reports jobs that are not measured because a quota is used up: in their verdict, their history and an
incident."""

from __future__ import annotations

from datetime import datetime

from django.db import transaction
from django.db.models import QuerySet

from cluster.models import Cluster
from projects.prepared import PreparedValues
from scheduling.choices import UNDECIDED_STATES, JobEventKind
from scheduling.models import Incident, Job
from scheduling.services.measuring.room_to_measure import RoomToMeasure
from scheduling.services.rows.records import record
from scheduling.services.verdicts.incidents import resolve, saw
from scheduling.stored_verdict import AnswerCode, pending

_TOLD = {"verdict__decision": "pending", "verdict__reason_code": AnswerCode.QUOTA}


def known_waits(cluster_id: int) -> QuerySet[Incident]:
    """Return the open incidents of jobs that wait for a quota."""
    return Incident.objects.filter(cluster=cluster_id, kind=Incident.Kind.NO_QUOTA, resolved_at__isnull=True)


_KNOWN = PreparedValues(lambda cluster_id: known_waits(cluster_id).values_list("job_id"))


def note_quota_waits(room: RoomToMeasure) -> None:
    """Store which jobs wait for a quota, and clear those that no longer wait."""
    cluster = room.cluster
    known = {job_id for (job_id,) in _KNOWN.ask(cluster.pk) if job_id}
    if not known and not room.refused:
        return
    with transaction.atomic():
        for job in Job.objects.filter(pk__in=room.refused).select_related("cluster"):
            reason = room.refused[job.pk]
            if job.pk not in known:
                _say(cluster, job, reason, room.now)
            if job.curve_id is not None:
                alike = Job.objects.filter(
                    curve=job.curve_id, state__in=UNDECIDED_STATES, verdict__isnull=True
                )
                alike.update(verdict=pending(AnswerCode.QUOTA, f"Not measured yet: {reason}.").as_json())
        over = known - set(room.refused) - (room.waiting - room.asked)
        for job in Job.objects.filter(pk__in=over):
            forget_quota(job)
        resolve(cluster, {Incident.Kind.NO_QUOTA: known - over | set(room.refused)}, room.now)


def forget_quota(job: Job) -> None:
    """Clear the verdict "quota used up" of undecided jobs with the job's curve."""
    if job.curve_id is not None:
        told = Job.objects.filter(curve=job.curve_id, state__in=UNDECIDED_STATES, **_TOLD)
        told.update(verdict=None)
        if job.verdict and job.verdict.get("reason_code") == AnswerCode.QUOTA:
            job.verdict = None


def _say(cluster: Cluster, job: Job, reason: str, now: datetime) -> None:
    saw(cluster, Incident.Kind.NO_QUOTA, reason, job=job, now=now)
    record(job, JobEventKind.NO_QUOTA, f"Its function is not measured: {reason}.")
