"""Sets jobs aside so that planning proceeds for all others, and records what broke planning.

A job is set aside if its rows cannot be planned, or if no plan can be computed with it but one can without
it. It keeps its GPUs, which are blocked, and takes part again later: rows are read again in every pass, and a
job that broke a plan waits for `TRY_AGAIN_AFTER`. A newcomer is declined instead, with the reason, since it
would wait forever.
"""

from __future__ import annotations

import traceback
from collections.abc import Mapping
from datetime import datetime

import structlog
from django.db import transaction

from cluster.models import Cluster
from projects.prepared import PreparedRows
from scheduling.choices import UNDECIDED_STATES, JobEventKind
from scheduling.core.question.recording import pack_snapshot
from scheduling.core.question.snapshot import Snapshot
from scheduling.models import Incident, Job
from scheduling.services.rows.records import record
from scheduling.services.verdicts.declining import decline
from scheduling.services.verdicts.incidents import MOST_DETAIL_CHARACTERS, breaking_jobs, saw
from scheduling.stored_verdict import AnswerCode

log = structlog.get_logger(__name__)

#: Incidents that are not resolved by planning the job.
NOT_OF_PLANNING = (
    Incident.Kind.NO_QUOTA,
    Incident.Kind.NO_PORT,
    Incident.Kind.UNRECOVERED,
    Incident.Kind.UNPROTECTED,
    Incident.Kind.NO_STANDBY,
    Incident.Kind.TOO_OLD,
)
NO_QUESTIONS: Mapping[str, Snapshot] = {}


_OPEN = PreparedRows(
    lambda cluster_id: Incident.objects.filter(cluster=cluster_id, resolved_at__isnull=True).select_related(
        "job"
    )
)


def note_set_aside(
    cluster: Cluster,
    unplannable: Mapping[str, str],
    breaking: Mapping[str, str],
    planned: set[str],
    now: datetime,
    questions: Mapping[str, Snapshot] = NO_QUESTIONS,
) -> None:
    """Store which jobs a pass set aside and why, and which take part again. The caller holds the cluster's
    row.

    ``planned``: all jobs that took part. ``questions``: by job id, the snapshot that had no answer with it.
    """
    reasons = {**dict.fromkeys(unplannable, Incident.Kind.UNPLANNABLE)}
    reasons |= dict.fromkeys(breaking, Incident.Kind.BREAKS_PLANS)
    known = set(breaking_jobs(cluster, now))
    messages = {**unplannable, **breaking}
    for job in Job.objects.filter(pk__in=reasons).select_related("cluster") if reasons else ():
        if job.finished():
            continue  # it has finished since the snapshot was read
        kind, message = reasons[job.pk], messages[job.pk]
        if kind == Incident.Kind.BREAKS_PLANS and job.pk in known:
            continue  # left out because of the earlier incident; this incident is not new
        if saw(cluster, kind, message, job=job, snapshot=_packed(questions.get(job.pk)), now=now):
            _set_aside(job, message, now)
    # Few incidents are open, while thousands of jobs may take part, so these are not part of the query.
    for incident in _OPEN.ask(cluster.pk):
        taking_part = incident.job_id in planned and incident.kind not in NOT_OF_PLANNING
        ended = incident.job is not None and incident.job.finished()
        if not (taking_part or ended):
            continue
        incident.resolved_at = now
        incident.save(update_fields=["resolved_at"])
        if incident.job is not None and not incident.job.finished():
            record(incident.job, JobEventKind.PLANNED_AGAIN, "It can be planned again.")


def note_not_measured(
    cluster: Cluster, job: Job, error: BaseException, question: Snapshot, now: datetime
) -> None:
    """Store that no plan could be computed beside a measurement of the job's function."""
    detail = "".join(traceback.format_exception(error))[-MOST_DETAIL_CHARACTERS:].replace("\0", "")
    message = f"{type(error).__name__}: {error}"[:500].replace("\0", "")
    kind = Incident.Kind.NOT_MEASURED
    with transaction.atomic():
        saw(cluster, kind, message, job=job, detail=detail, snapshot=pack_snapshot(question), now=now)


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
        JobEventKind.SET_ASIDE,
        f"It cannot be planned and is set aside; it keeps the GPUs that it has. {message}.",
    )


def _packed(question: Snapshot | None) -> bytes | None:
    return None if question is None else pack_snapshot(question)
