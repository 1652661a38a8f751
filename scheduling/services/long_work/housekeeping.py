"""Deletes expired data: old snapshots, applied events, samples, logs and unneeded checkpoints."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta

import fsspec
import structlog
from django.conf import settings
from django.db.models import Count, Q, Sum
from django.db.models.functions import Length
from django.utils import timezone

from cluster.models import Outage, UtilisationSample
from projects.services import expire_idempotency_records
from scheduling.choices import TERMINAL_STATES, JobState, RecoveryOutcome
from scheduling.models import (
    AppliedEvent,
    Checkpoint,
    Decision,
    Incident,
    Job,
    LogChunk,
    PlannerPass,
    Recovery,
)
from scheduling.services.generations.progress import MAXIMUM_LOG_BYTES
from scheduling.services.rows.pass_lengths import PASSES_KEPT_FOR

log = structlog.get_logger(__name__)

KEPT_CHECKPOINTS = 2
#: Retention of the last state of a failed job.
KEPT_AFTER_A_FAILURE = timedelta(days=7)
#: Retention of the last state of a job that ended otherwise.
_KEPT_AFTER_AN_END = timedelta(hours=1)
RECOVERIES_KEPT_FOR = timedelta(days=90)
#: Limit for each job.
MOST_RECOVERIES = 500
#: PostgreSQL stores this length beside a long text, which is not read for it. Characters would be counted.
_BYTES = Length("text", function="octet_length")
TRIMMED = f"[older output is dropped: of a job's log the last {MAXIMUM_LOG_BYTES >> 20} MiB are kept]\n"


def keep_house() -> None:
    """Delete expired rows. Each step is independent and may run twice."""
    now = timezone.now()
    retention = timedelta(days=settings.SNAPSHOT_RETENTION_DAYS)
    Decision.objects.filter(decided_at__lt=now - retention, snapshot__isnull=False).update(snapshot=None)
    Incident.objects.filter(last_at__lt=now - retention, snapshot__isnull=False).update(snapshot=None)
    AppliedEvent.objects.filter(applied_at__lt=now - timedelta(days=2)).delete()
    UtilisationSample.objects.filter(taken_at__lt=now - timedelta(days=90)).delete()
    Outage.objects.filter(started_at__lt=now - timedelta(days=90)).delete()
    PlannerPass.objects.filter(ended_at__lt=now - PASSES_KEPT_FOR).delete()
    expire_idempotency_records()
    trim_recoveries(now)
    trim_logs(now)
    delete_old_checkpoints(now)


def trim_recoveries(now: datetime) -> None:
    """Keep recoveries for 90 days, and of each job the last few hundred: a job that fails at every start
    must not fill the table."""
    ended = Recovery.objects.exclude(outcome=RecoveryOutcome.OPEN)
    ended.filter(ended_at__lt=now - RECOVERIES_KEPT_FOR).delete()
    many = Recovery.objects.values("job").annotate(count=Count("pk")).filter(count__gt=MOST_RECOVERIES)
    for job_id in many.order_by().values_list("job", flat=True):
        newest = Recovery.objects.filter(job=job_id).order_by("-id").values_list("pk", flat=True)
        ended.filter(job=job_id, pk__lt=newest[MOST_RECOVERIES - 1]).delete()


def trim_logs(now: datetime) -> None:
    """Delete the oldest chunks of logs that exceed their limit, and say so where the rest begins.

    The log of a job that ended more than a day ago does not grow, so it is not read again.
    """
    growing = Q(job__finished_at__isnull=True) | Q(job__finished_at__gt=now - timedelta(days=1))
    large = (
        LogChunk.objects.filter(growing)
        .order_by()
        .values("job")
        .annotate(total=Sum(_BYTES))
        .filter(total__gt=MAXIMUM_LOG_BYTES)
    )
    for row in large:
        excess = row["total"] - MAXIMUM_LOG_BYTES
        doomed = []
        for pk, length in LogChunk.objects.filter(job=row["job"]).order_by("id").values_list("id", _BYTES):
            if excess <= 0:
                break
            doomed.append(pk)
            excess -= length
        LogChunk.objects.filter(pk__in=doomed).delete()
        oldest = LogChunk.objects.filter(job=row["job"]).order_by("id").first()
        if doomed and oldest is not None:  # the earlier notice was in the oldest chunk and is deleted
            oldest.text = TRIMMED + oldest.text
            oldest.save(update_fields=["text"])


_OF_A_CHECKPOINT = (
    "uri", "iteration", "generation", "stored_at", "complete_at",
    "job__state", "job__finished_at", "job__checkpoint_id",
)  # fmt: skip


def delete_old_checkpoints(now: datetime) -> None:
    """Keep a running job's last two complete states and those being written, a failed job's last state for
    a week, and any other finished job's states for an hour."""
    live = Checkpoint.objects.filter(deleted_at__isnull=True).select_related("job")
    by_job: dict[str, list[Checkpoint]] = defaultdict(list)
    for checkpoint in live.only(*_OF_A_CHECKPOINT).order_by("job"):
        by_job[checkpoint.job_id].append(checkpoint)
    unneeded = [one for of_job in by_job.values() for one in _unneeded(of_job[0].job, of_job, now)]
    deleted = [checkpoint.pk for checkpoint in unneeded if _delete_files(checkpoint)]
    if deleted:
        Checkpoint.objects.filter(pk__in=deleted).update(deleted_at=now)


def _unneeded(job: Job, stored: Sequence[Checkpoint], now: datetime) -> list[Checkpoint]:
    """Return those of a job's stored checkpoints that are not kept."""
    finished_at = job.finished_at if job.state in TERMINAL_STATES else None
    keeps_last = finished_at is None
    if finished_at is not None:
        if now - finished_at < _KEPT_AFTER_AN_END:
            return []
        keeps_last = job.state == JobState.FAILED and now - finished_at < KEPT_AFTER_A_FAILURE
    kept = KEPT_CHECKPOINTS if finished_at is None else 0
    complete = [one for one in stored if one.complete_at is not None]
    complete.sort(key=lambda one: (one.iteration, one.generation), reverse=True)
    # The latest incomplete checkpoints may still become complete.
    begun = [one for one in stored if one.complete_at is None]
    begun.sort(key=lambda one: one.stored_at, reverse=True)
    rest = [*complete[kept:], *begun[kept:]]
    return [one for one in rest if one.pk != job.checkpoint_id or not keeps_last]


def _delete_files(checkpoint: Checkpoint) -> bool:
    """Return whether none of the checkpoint's files are left."""
    filesystem, path = fsspec.core.url_to_fs(checkpoint.uri)
    try:
        filesystem.rm(path, recursive=True)
    except FileNotFoundError:
        pass
    except OSError as error:
        log.warning("checkpoint not deleted", uri=checkpoint.uri, error=str(error))
        return False
    return True
