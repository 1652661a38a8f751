"""Problems for operators: a job that was set aside, a failed pass, a recovery that takes too long."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils import timezone

from cluster.models import Cluster
from scheduling.models.jobs import Job


class Incident(models.Model):
    """A problem, from when it was first seen until it was resolved.

    ``message``: a sentence. ``detail``: a traceback, or the jobs that missed a promise. ``count``: how often
    it was seen. ``snapshot``: the planner's input without an answer, compressed like a decision's, so that
    the failure can be replayed.
    """

    class Kind(models.TextChoices):
        #: The job's rows cannot be planned.
        UNPLANNABLE = "unplannable", "Job set aside"
        #: With the job, no plan could be computed; without it, one could.
        BREAKS_PLANS = "breaks_plans", "Job set aside, planning failed with it"
        #: No plan could be computed beside a measurement of the job's function.
        NOT_MEASURED = "not_measured", "Measurement put off, planning failed with it"
        #: The function is not measured because its project's quota is used up.
        NO_QUOTA = "no_quota", "Not measured, a quota is used up"
        #: A server has no port left for the job's workers, so the job stays as it is.
        NO_PORT = "no_port", "Job not started or moved, a server has no free port"
        #: The job does not train again after a failure.
        UNRECOVERED = "unrecovered", "Not recovered in time"
        #: Its state in memory has fewer copies than ordered.
        UNPROTECTED = "unprotected", "State in memory without its copies"
        #: No standby server is ready, although the operator configured some.
        NO_STANDBY = "no_standby", "No standby server ready"
        #: A lost server would cost more work than the promise assumes.
        TOO_OLD = "too_old", "Safe state older than its promise counts on"
        #: Promises were missed because the platform was stopped: one incident for each outage, resolved at
        #: its end.
        STOPPED = "stopped", "Platform stopped"
        #: A whole pass of the planner failed.
        PASS_FAILED = "pass_failed", "Planning failed"

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="incidents")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, null=True, related_name="incidents")
    kind = models.CharField(max_length=12, choices=Kind.choices)
    message = models.TextField()
    detail = models.TextField(blank=True)
    snapshot = models.BinaryField(null=True, blank=True)
    count = models.PositiveIntegerField(default=1)
    first_at = models.DateTimeField(default=timezone.now)
    last_at = models.DateTimeField(default=timezone.now)
    resolved_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["-id"]
        constraints = [
            models.UniqueConstraint(
                fields=["cluster", "kind", "job"],
                condition=Q(resolved_at__isnull=True),
                nulls_distinct=False,
                name="incident_open_once",
            )
        ]
