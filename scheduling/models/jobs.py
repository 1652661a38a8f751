"""Jobs: the request, the answer, and the progress."""

from __future__ import annotations

import secrets
from datetime import datetime

from django.conf import settings
from django.db import models
from django.db.models import Q
from django.utils import timezone

from cluster.models import Cluster
from projects.models import Project
from scheduling.choices import TERMINAL_STATES, JobState, Lossy, PromiseOutcome, ServiceClass, VoidReason
from scheduling.models.functions import FunctionVersion, ScalingCurve

_ALPHABET = "abcdefghjkmnpqrstuvwxyz23456789"


def new_job_id() -> str:
    """Return a short, unguessable id that is easy to read aloud: 12 characters, about 59 bits."""
    return "".join(secrets.choice(_ALPHABET) for _ in range(12))


class Job(models.Model):
    """One submission and its life.

    ``plan``: the stored plan ({start, end, gpus, finish_at}: lists in Unix seconds). ``verdict``: the answer.
    ``iterations_done``: as agents reported, never an estimate.
    """

    id = models.CharField(primary_key=True, max_length=16, default=new_job_id, editable=False)
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="jobs")
    #: User who submitted it.
    owner = models.ForeignKey(settings.AUTH_USER_MODEL, on_delete=models.PROTECT, related_name="jobs")
    cluster = models.ForeignKey(Cluster, on_delete=models.PROTECT, related_name="jobs")
    function_version = models.ForeignKey(FunctionVersion, on_delete=models.PROTECT, related_name="jobs")
    curve = models.ForeignKey(ScalingCurve, on_delete=models.PROTECT, null=True, related_name="jobs")
    name = models.CharField(max_length=200)
    #: The user's labels by name.
    labels = models.JSONField(default=dict)

    #: Values passed to the function.
    hyperparameters = models.JSONField(default=dict)
    global_batch_size = models.PositiveIntegerField()
    #: Iteration after which it ends.
    max_iterations = models.PositiveBigIntegerField()
    #: Metric value at which it ends earlier; null without one.
    target = models.JSONField(null=True, blank=True)
    seed = models.PositiveIntegerField(default=0)
    #: Declared data sets.
    data = models.JSONField(default=list)
    checkpoint_seconds = models.FloatField(default=60.0)
    #: Whether lossy codecs may compress its gradients, and which ones; empty: any.
    lossy = models.CharField(max_length=8, choices=Lossy.choices, default=Lossy.REFUSED)
    codecs = models.JSONField(default=list, blank=True)
    #: Its owner's requests (`ProtectionSerializer`): `replicas`, `frequency`; empty for neither.
    asked_protection = models.JSONField(default=dict, blank=True)
    service_class = models.CharField(max_length=12, choices=ServiceClass.choices)
    deadline_at = models.DateTimeField(null=True, blank=True)

    state = models.CharField(max_length=10, choices=JobState.choices, default=JobState.SUBMITTED)
    #: Whether its deadline is promised.
    promised = models.BooleanField(default=False)
    #: Whether no plan keeps its promise.
    at_risk = models.BooleanField(default=False)
    #: Whether its deadline has passed before its completion.
    late = models.BooleanField(default=False)
    paused_by_owner = models.BooleanField(default=False)
    promise_outcome = models.CharField(
        max_length=6, choices=PromiseOutcome.choices, default=PromiseOutcome.NONE
    )
    #: Why its promise no longer binds; empty otherwise.
    void_reason = models.CharField(max_length=40, choices=VoidReason.choices, blank=True)
    #: Its owner resumed it, and the planner is to decide whether its promise can be restored.
    promise_asked_again = models.BooleanField(default=False)

    submitted_at = models.DateTimeField(default=timezone.now)
    decided_at = models.DateTimeField(null=True, blank=True)
    started_at = models.DateTimeField(null=True, blank=True)
    finished_at = models.DateTimeField(null=True, blank=True)

    plan = models.JSONField(null=True, blank=True)
    #: What the policy stored at its last decision: the policy's name, and numbers.
    policy_memory = models.JSONField(default=dict, blank=True)
    verdict = models.JSONField(null=True, blank=True)
    #: Protection of its state on which a promise may depend: chosen with its first verdict, empty if no
    #: server was in reserve.
    protection_class = models.JSONField(default=dict, blank=True)
    #: Undecided until more levels of its curve are known, since the known ones cannot keep its deadline.
    awaits_levels = models.BooleanField(default=False)
    #: Kinds of GPU that refused it, each with `reason_code` and `reason`, while other kinds are tried.
    refused_kinds = models.JSONField(default=dict, blank=True)
    #: Declined during a burst: an offer is searched once no newcomer waits.
    awaits_offer = models.BooleanField(default=False)
    #: Reason and message; null unless it failed.
    failure = models.JSONField(null=True, blank=True)

    iterations_done = models.PositiveBigIntegerField(default=0)
    iterations_reported_at = models.DateTimeField(null=True, blank=True)
    iterations_per_second = models.FloatField(default=0.0)
    pause_until = models.DateTimeField(null=True, blank=True)
    #: Failures without progress in between.
    failures = models.PositiveIntegerField(default=0)
    #: Iteration reached at the last failure.
    failed_at_iteration = models.PositiveBigIntegerField(default=0)

    #: Number of its newest generation; 0 before the first.
    last_generation = models.PositiveIntegerField(default=0)
    #: Newest complete checkpoint.
    checkpoint = models.ForeignKey(
        "scheduling.Checkpoint", on_delete=models.SET_NULL, null=True, related_name="+"
    )
    #: The job whose offer it accepted, or that it repeats.
    resubmission_of = models.ForeignKey(
        "self", on_delete=models.SET_NULL, null=True, related_name="resubmissions"
    )
    #: Metrics of the final weights.
    final_metrics = models.JSONField(null=True, blank=True)
    #: NaN or infinite values of its training: `since` (iteration of the first such loss, while they last) and
    #: `weights` (of the result: `tensors`, `of`, `names`); empty without any.
    nonfinite = models.JSONField(default=dict, blank=True)
    sample_order_digest = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering = ["-submitted_at", "-id"]
        indexes = [
            models.Index(fields=["project", "-submitted_at"]),
            models.Index(
                fields=["cluster", "state"], condition=~Q(state__in=TERMINAL_STATES), name="job_unfinished"
            ),
            models.Index(fields=["cluster"], condition=Q(awaits_offer=True), name="job_awaits_offer"),
        ]
        constraints = [
            models.CheckConstraint(
                condition=~Q(state__in=TERMINAL_STATES) | Q(finished_at__isnull=False),
                name="terminal_job_has_finish_time",
            ),
            models.CheckConstraint(
                condition=Q(promised=False) | Q(deadline_at__isnull=False), name="promise_has_deadline"
            ),
            models.CheckConstraint(
                condition=~Q(service_class="slo") | Q(deadline_at__isnull=False),
                name="hard_deadline_is_given",
            ),
            models.CheckConstraint(
                condition=Q(max_iterations__gt=0) & Q(global_batch_size__gt=0), name="job_has_work"
            ),
        ]

    def __str__(self) -> str:
        return f"{self.name} ({self.id})"

    def finished(self) -> bool:
        return self.state in TERMINAL_STATES

    def may_be_measured(self) -> bool:
        """Return whether its function may be measured for it: until it ends, and after a decline for the
        next submission."""
        return not self.finished() or self.state == JobState.DECLINED

    def remaining_iterations(self) -> int:
        return max(0, self.max_iterations - self.iterations_done)

    def slack_seconds(self, now: datetime) -> float | None:
        """Return the seconds between the planned finish, or the actual one, and the deadline."""
        if self.deadline_at is None:
            return None
        if self.finished_at is not None:
            return (self.deadline_at - self.finished_at).total_seconds()
        finish = (self.plan or {}).get("finish_at")
        return None if finish is None else self.deadline_at.timestamp() - float(finish)
