"""What was stored of a job while it ran: events, metrics and checkpoints."""

from __future__ import annotations

from django.db.models import QuerySet

from scheduling.models import Checkpoint, Job, JobEvent, JobMetric


def events_of(job: Job) -> QuerySet[JobEvent]:
    return JobEvent.objects.filter(job=job)


def metrics_of(job: Job, after_iteration: int | None = None) -> QuerySet[JobMetric]:
    """Return the job's metrics, later than the given iteration. If an iteration was trained again, the
    latest generation counts."""
    newest = JobMetric.objects.filter(job=job).order_by("iteration", "-generation").distinct("iteration")
    rows = JobMetric.objects.filter(pk__in=newest.values("pk"))
    return rows if after_iteration is None else rows.filter(iteration__gt=after_iteration)


def checkpoints_of(job: Job) -> QuerySet[Checkpoint]:
    """Return the job's complete checkpoints in the durable store."""
    return Checkpoint.objects.filter(job=job, deleted_at__isnull=True, complete_at__isnull=False)
