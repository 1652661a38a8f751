"""Incidents: jobs set aside so that planning goes on for all others, and passes of the planner that failed.

A job is set aside when its rows say what cannot be planned, or when no plan can be computed with it and one
can without it. It keeps what it holds (its GPUs are blocked), and it is looked at again: what its rows say at
every pass, what broke a plan after a while. A newcomer is declined instead, with the reason: it would wait
for ever.
"""

from __future__ import annotations

import traceback
from collections.abc import Collection, Mapping
from datetime import datetime, timedelta

import structlog
from django.db import transaction
from django.db.models import F
from django.utils import timezone

from cluster.models import Cluster
from scheduling.choices import UNDECIDED_STATES
from scheduling.core.question.recording import pack_snapshot
from scheduling.core.question.snapshot import Snapshot
from scheduling.models import Incident, Job
from scheduling.services.declining import decline
from scheduling.services.records import record
from scheduling.services.wakeups import hint
from scheduling.stored_verdict import AnswerCode

log = structlog.get_logger(__name__)

#: After so long a job that broke a plan takes part again: the others, or the code, may be different ones.
TRY_AGAIN_AFTER = timedelta(minutes=10)
#: After so long a job is measured again for which a server had no port.
PORT_AGAIN_AFTER = timedelta(minutes=1)
MOST_DETAIL_CHARACTERS = 20_000
#: Being planned does not put these right.
NOT_OF_PLANNING = (
    Incident.Kind.NO_PORT,
    Incident.Kind.UNRECOVERED,
    Incident.Kind.UNPROTECTED,
    Incident.Kind.NO_STANDBY,
    Incident.Kind.TOO_OLD,
)
NO_QUESTIONS: Mapping[str, Snapshot] = {}


def breaking_jobs(cluster: Cluster, now: datetime) -> dict[str, str]:
    """Jobs that broke a plan a short while ago, with what was said then."""
    recent = Incident.objects.filter(
        cluster=cluster,
        kind=Incident.Kind.BREAKS_PLANS,
        resolved_at__isnull=True,
        last_at__gt=now - TRY_AGAIN_AFTER,
    )
    return {job_id: message for job_id, message in recent.values_list("job_id", "message") if job_id}


def note_set_aside(
    cluster: Cluster,
    unplannable: Mapping[str, str],
    breaking: Mapping[str, str],
    planned: set[str],
    now: datetime,
    questions: Mapping[str, Snapshot] = NO_QUESTIONS,
) -> None:
    """Write down who was set aside in a pass and why, and who takes part again. The caller holds the
    cluster's row.

    ``planned``: all jobs that took part. ``questions``: what had no answer with a breaking job.
    """
    reasons = {**dict.fromkeys(unplannable, Incident.Kind.UNPLANNABLE)}
    reasons |= dict.fromkeys(breaking, Incident.Kind.BREAKS_PLANS)
    known = set(breaking_jobs(cluster, now))
    messages = {**unplannable, **breaking}
    for job in Job.objects.filter(pk__in=reasons).select_related("cluster"):
        if job.finished():
            continue  # since the question was read
        kind, message = reasons[job.pk], messages[job.pk]
        if kind == Incident.Kind.BREAKS_PLANS and job.pk in known:
            continue  # left out by what was found before: not seen anew
        if _saw(cluster, kind, message, job=job, question=questions.get(job.pk), now=now):
            _set_aside(job, message, now)
    # Few are open, and thousands may take part: the database need not be told of all of these.
    for incident in Incident.objects.filter(cluster=cluster, resolved_at__isnull=True).select_related("job"):
        taking_part = incident.job_id in planned and incident.kind not in NOT_OF_PLANNING
        ended = incident.job is not None and incident.job.finished()
        if not (taking_part or ended):
            continue
        incident.resolved_at = now
        incident.save(update_fields=["resolved_at"])
        if incident.job is not None and not incident.job.finished():
            record(incident.job, "planned_again", "It can be planned again.")


def note_no_port(cluster: Cluster, job: Job, message: str, now: datetime) -> None:
    """Write down that a job was not started or moved because a server has no port left for its workers.

    The caller holds the cluster's row.
    """
    if _saw(cluster, Incident.Kind.NO_PORT, message, job=job, now=now):
        log.error("no_free_port", job=job.pk, reason=message)
        record(job, "no_port", f"It cannot be started or moved now: {message}. It is tried again.")


def jobs_without_port(cluster: Cluster, now: datetime) -> set[str]:
    """Jobs that lacked a port a short while ago: others go first."""
    recent = Incident.objects.filter(
        cluster=cluster,
        kind=Incident.Kind.NO_PORT,
        resolved_at__isnull=True,
        last_at__gt=now - PORT_AGAIN_AFTER,
    )
    return {job_id for job_id in recent.values_list("job_id", flat=True) if job_id}


def note_ports(cluster: Cluster, job_ids: Collection[str], now: datetime) -> None:
    """Jobs that lacked a port have what they need now."""
    Incident.objects.filter(
        cluster=cluster, kind=Incident.Kind.NO_PORT, job__in=job_ids, resolved_at__isnull=True
    ).update(resolved_at=now)


def saw_once(cluster: Cluster, kind: str, message: str, *, job: Job | None, now: datetime) -> None:
    """Write down what is wrong with a job, or with the cluster, unless that is known. Of two who see it at
    once one fails."""
    open_ones = Incident.objects.filter(cluster=cluster, kind=kind, job=job, resolved_at__isnull=True)
    if not open_ones.exists():
        log.error(kind, job=None if job is None else job.pk, reason=message)
        _saw(cluster, kind, message, job=job, now=now)


def resolve(cluster: Cluster, but: Mapping[str, Collection[str]], now: datetime) -> None:
    """Incidents of these kinds are over, but those of the jobs that are named with each. Most looks find none
    open, and write nothing."""
    open_ones = Incident.objects.filter(cluster=cluster, kind__in=but, resolved_at__isnull=True)
    rows = open_ones.values_list("pk", "kind", "job_id")
    over = [incident_id for incident_id, kind, job_id in rows if job_id not in but[kind]]
    if over:
        open_ones.filter(pk__in=over).update(resolved_at=now)


def note_not_measured(
    cluster: Cluster, job: Job, error: BaseException, question: Snapshot, now: datetime
) -> None:
    """Write down that no plan could be computed beside a measurement of the job's function."""
    detail = "".join(traceback.format_exception(error))[-MOST_DETAIL_CHARACTERS:].replace("\0", "")
    message = f"{type(error).__name__}: {error}"[:500].replace("\0", "")
    kind = Incident.Kind.NOT_MEASURED
    with transaction.atomic():
        _saw(cluster, kind, message, job=job, detail=detail, question=question, now=now)


def _set_aside(job: Job, message: str, now: datetime) -> None:
    log.error("job_set_aside", job=job.pk, reason=message)
    if job.state in UNDECIDED_STATES:
        decline(job, AnswerCode.CANNOT_BE_PLANNED, f"It cannot be planned: {message}.", now)
        return
    if job.promised and not job.at_risk:
        job.at_risk = True
        job.save(update_fields=["at_risk"])
    record(
        job,
        "set_aside",
        f"It cannot be planned and is set aside; it keeps the GPUs that it has. {message}.",
    )


def note_failed_pass(cluster_id: int, error: BaseException) -> None:
    """Write down that a pass failed, in a transaction of its own. Never raises: the failure itself must be
    heard."""
    log.error("planning_failed", cluster=cluster_id, exc_info=error)
    try:
        with transaction.atomic():
            cluster = Cluster.objects.get(pk=cluster_id)
            detail = "".join(traceback.format_exception(error))[-MOST_DETAIL_CHARACTERS:].replace("\0", "")
            message = f"{type(error).__name__}: {error}"[:2000].replace("\0", "")
            _saw(cluster, Incident.Kind.PASS_FAILED, message, detail=detail, now=timezone.now())
    except Exception:
        log.exception("failed_pass_not_recorded", cluster=cluster_id)


def note_good_pass(cluster_id: int) -> None:
    """Planning works: what failed before is over."""
    open_ones = Incident.objects.filter(
        cluster_id=cluster_id, kind=Incident.Kind.PASS_FAILED, resolved_at__isnull=True
    )
    open_ones.update(resolved_at=timezone.now())


def _saw(
    cluster: Cluster,
    kind: str,
    message: str,
    *,
    now: datetime,
    job: Job | None = None,
    detail: str = "",
    question: Snapshot | None = None,
) -> bool:
    """Note one thing that is wrong. Returns whether it is new. Of the questions without an answer the first
    is kept."""
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
        snapshot=None if question is None else pack_snapshot(question),
        first_at=now,
        last_at=now,
    )
    hint(f"cluster:{cluster.pk}", kind="planned")
    return True
