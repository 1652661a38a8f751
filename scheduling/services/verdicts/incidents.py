"""Incidents: problems of a job or the cluster, open until they are over, shown to operators."""

from __future__ import annotations

import traceback
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.db.models import F, QuerySet
from django.utils import timezone

from cluster.models import Cluster
from projects.prepared import PreparedValues, time_hole
from scheduling.choices import JobEventKind
from scheduling.models import Incident, Job
from scheduling.services.rows.records import read_cluster, record
from scheduling.services.rows.wakeups import hint

log = structlog.get_logger(__name__)

#: Time after which a job that broke a plan takes part again: other jobs, or the code, may have changed.
TRY_AGAIN_AFTER = timedelta(minutes=10)
#: Time after which a job without a free port is measured again.
PORT_AGAIN_AFTER = timedelta(minutes=1)
MOST_DETAIL_CHARACTERS = 20_000


def breaking_jobs(cluster: Cluster, now: datetime) -> dict[str, str]:
    """Return jobs that broke a plan recently, with the error."""
    recent = _BREAKING.ask(cluster.pk, now - TRY_AGAIN_AFTER)
    return {job_id: message for job_id, message in recent if job_id}


_BREAKING = PreparedValues(
    lambda cluster_id, since: Incident.objects.filter(
        cluster=cluster_id,
        kind=Incident.Kind.BREAKS_PLANS,
        resolved_at__isnull=True,
        last_at__gt=time_hole(since),
    ).values_list("job_id", "message")
)


def note_no_port(cluster: Cluster, job: Job, message: str, now: datetime) -> None:
    """Record that a job was not started or moved because a server has no free port for its workers.

    The caller holds the cluster's row.
    """
    if saw(cluster, Incident.Kind.NO_PORT, message, job=job, now=now):
        log.error("no_free_port", job=job.pk, reason=message)
        record(job, JobEventKind.NO_PORT, f"It cannot be started or moved now: {message}. It is tried again.")


def jobs_without_port(cluster: Cluster, now: datetime) -> set[str]:
    """Return jobs that recently lacked a port; others go first."""
    recent = Incident.objects.filter(
        cluster=cluster,
        kind=Incident.Kind.NO_PORT,
        resolved_at__isnull=True,
        last_at__gt=now - PORT_AGAIN_AFTER,
    )
    return {job_id for job_id in recent.values_list("job_id", flat=True) if job_id}


def note_ports(cluster: Cluster, job_ids: Collection[str], now: datetime) -> None:
    """Resolve incidents of missing ports for these jobs."""
    Incident.objects.filter(
        cluster=cluster, kind=Incident.Kind.NO_PORT, job__in=job_ids, resolved_at__isnull=True
    ).update(resolved_at=now)


def saw_once(cluster: Cluster, kind: str, message: str, *, job: Job | None, now: datetime) -> None:
    """Record a problem of a job or the cluster unless it is known. Of two concurrent calls one fails."""
    open_ones = Incident.objects.filter(cluster=cluster, kind=kind, job=job, resolved_at__isnull=True)
    if not open_ones.exists():
        log.error(kind, job=None if job is None else job.pk, reason=message)
        saw(cluster, kind, message, job=job, now=now)


def resolve(cluster: Cluster, but: Mapping[str, Collection[str]], now: datetime) -> None:
    """Resolve incidents of these kinds, except for the jobs named with each. Most calls find none open and
    write nothing."""
    open_ones = Incident.objects.filter(cluster=cluster, kind__in=but, resolved_at__isnull=True)
    rows = open_ones.values_list("pk", "kind", "job_id")
    over = [incident_id for incident_id, kind, job_id in rows if job_id not in but[kind]]
    if over:
        open_ones.filter(pk__in=over).update(resolved_at=now)


def note_failed_pass(cluster_id: int, error: BaseException) -> None:
    """Record a failed pass in a transaction of its own. Never raises, so that the error itself is not
    hidden."""
    log.error("planning_failed", cluster=cluster_id, exc_info=error)
    try:
        with transaction.atomic():
            cluster = read_cluster(cluster_id)
            detail = "".join(traceback.format_exception(error))[-MOST_DETAIL_CHARACTERS:].replace("\0", "")
            message = f"{type(error).__name__}: {error}"[:2000].replace("\0", "")
            saw(cluster, Incident.Kind.PASS_FAILED, message, detail=detail, now=timezone.now())
    except Exception:
        log.exception("failed_pass_not_recorded", cluster=cluster_id)


def open_pass_failures(cluster_id: int) -> QuerySet[Incident]:
    """Return the open incidents of failed passes."""
    return Incident.objects.filter(
        cluster_id=cluster_id, kind=Incident.Kind.PASS_FAILED, resolved_at__isnull=True
    )


def note_good_pass(cluster_id: int) -> None:
    """Resolve incidents of failed passes."""
    open_pass_failures(cluster_id).update(resolved_at=timezone.now())


def saw(
    cluster: Cluster,
    kind: str,
    message: str,
    *,
    now: datetime,
    job: Job | None = None,
    detail: str = "",
    snapshot: bytes | None = None,
) -> bool:
    """Record a problem. Return whether it is new. ``snapshot``: the question without an answer, packed;
    the first one is kept."""
    seen = Incident.objects.filter(cluster=cluster, kind=kind, job=job, resolved_at__isnull=True).update(
        message=message, detail=detail, last_at=now, count=F("count") + 1
    )
    if seen:
        return False
    Incident.objects.create(
        cluster=cluster,
        kind=kind,
        job=job,
        message=message,
        detail=detail,
        snapshot=snapshot,
        first_at=now,
        last_at=now,
    )
    hint(f"cluster:{cluster.pk}", kind="planned")
    return True
