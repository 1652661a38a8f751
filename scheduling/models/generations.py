"""Generations of a job, the GPUs assigned to them and the workers that agents report."""

from __future__ import annotations

from django.contrib.postgres.constraints import ExclusionConstraint
from django.contrib.postgres.fields import RangeOperators
from django.db import models
from django.db.models import Q
from django.utils import timezone

from cluster.models import Gpu, Server
from scheduling.choices import COMING_STATES, AssignmentState, GenerationState, Goal, Purpose, RetireReason
from scheduling.models.functions import ScalingCurve
from scheduling.models.jobs import Job


class Generation(models.Model):
    """One fixed set of workers of a job (docs/protocols.md 1)."""

    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="generations")
    #: 1, 2, ... within the job.
    number = models.PositiveIntegerField()
    #: Training or profiling.
    purpose = models.CharField(max_length=10, choices=Purpose.choices, default=Purpose.TRAINING)
    state = models.CharField(
        max_length=10, choices=GenerationState.choices, default=GenerationState.PREPARING
    )
    #: What the agents are ordered to do with its workers.
    goal = models.CharField(max_length=10, choices=Goal.choices, default=Goal.PREPARE)
    epoch = models.BigIntegerField()
    world_size = models.PositiveIntegerField()
    #: Server of torch's rendezvous store.
    master_server = models.ForeignKey(Server, on_delete=models.PROTECT, related_name="+")
    #: Port of torch's rendezvous store.
    master_port = models.PositiveIntegerField()
    #: Secret that its workers prove to have at a hand-over.
    secret = models.CharField(max_length=64)
    #: Source of its state; null until decided.
    start = models.JSONField(null=True, blank=True)
    #: Iteration of the state that it starts from.
    start_iteration = models.PositiveBigIntegerField(default=0)
    #: The curve that it runs on, or measures: the job's on its kind of GPU.
    curve = models.ForeignKey(
        ScalingCurve, on_delete=models.SET_NULL, null=True, blank=True, related_name="generations"
    )
    #: For a measurement: the levels and times to measure.
    profile = models.JSONField(null=True, blank=True)
    #: How its ranks work together, with a digest (docs/protocols.md 2.6).
    runtime_plan = models.JSONField(default=dict)
    #: The communication plan that it follows: its planner and predictions; empty without one.
    communication = models.JSONField(default=dict, blank=True)
    #: Recent measurements of that plan, last reported by rank 0 (docs/protocols.md 2.8); empty: none.
    communication_window = models.JSONField(default=dict, blank=True)
    #: Servers that keep its recovery points in memory (docs/protocols.md 2.7); empty: none were ordered.
    protection = models.JSONField(default=dict, blank=True)
    #: How it sends copies of its recovery points, reported by rank 0 (docs/protocols.md 2.7); empty: not
    #: reported. For people only; no decision depends on it.
    copy_traffic = models.JSONField(default=dict, blank=True)
    #: Secret with which these servers' stores authenticate to each other. Workers do not get it.
    store_secret = models.CharField(max_length=64, blank=True)
    reason = models.CharField(max_length=300, blank=True)
    #: Reason of its end; empty while it lives.
    retired_because = models.CharField(max_length=20, choices=RetireReason.choices, blank=True)
    #: Why its end counts as a failure of its job (`reason`, `message`); null if it does not.
    failure = models.JSONField(null=True, blank=True)
    #: The reason as a sentence.
    retire_reason = models.CharField(max_length=300, blank=True)
    pause_seconds = models.FloatField(null=True, blank=True)
    #: Parts of the pause: until its state was found, and from then until it was loaded. The rest is an
    #: iteration.
    waiting_seconds = models.FloatField(null=True, blank=True)
    loading_seconds = models.FloatField(null=True, blank=True)
    created_at = models.DateTimeField(default=timezone.now)
    #: When the present step times out; null while it waits for GPUs or trains.
    step_expires_at = models.DateTimeField(null=True, blank=True)
    held_at = models.DateTimeField(null=True, blank=True)
    ready_at = models.DateTimeField(null=True, blank=True)
    live_at = models.DateTimeField(null=True, blank=True)
    retired_at = models.DateTimeField(null=True, blank=True)

    class Meta:
        ordering = ["job_id", "number"]
        constraints = [
            models.UniqueConstraint(fields=["job", "number"], name="generation_number_once_per_job"),
            models.UniqueConstraint(
                fields=["job"],
                condition=Q(purpose=Purpose.TRAINING, state=GenerationState.LIVE),
                name="job_trains_one_generation",
            ),
            models.UniqueConstraint(
                fields=["job"],
                condition=Q(purpose=Purpose.TRAINING, state__in=[*COMING_STATES]),
                name="job_prepares_one_successor",
            ),
            models.UniqueConstraint(
                fields=["job"],
                condition=Q(purpose=Purpose.PROFILING) & ~Q(state=GenerationState.RETIRED),
                name="job_profiles_once_at_a_time",
            ),
        ]
        indexes = [
            models.Index(
                fields=["state"], condition=~Q(state=GenerationState.RETIRED), name="generation_unretired"
            )
        ]

    def is_repeated_from(self, iteration: int) -> bool:
        """Return whether a later generation trained this iteration again."""
        later = Generation.objects.filter(
            job_id=self.job_id, number__gt=self.number, purpose=Purpose.TRAINING, live_at__isnull=False
        )
        return later.filter(start_iteration__lt=iteration).exists()

    def measured_curve(self) -> ScalingCurve | None:
        """Return the curve for its measurements; None if that curve belongs to another plan family."""
        curve = self.curve or self.job.curve
        if curve is None or self.runtime_plan.get("family", curve.plan_family) != curve.plan_family:
            return None
        return curve


class Assignment(models.Model):
    """One GPU given to one rank of a generation.

    The exclusion constraint makes a GPU with two owners impossible: among `held` and `clearing`
    assignments a GPU belongs to one job (whose old and new generation may overlap on it).
    """

    generation = models.ForeignKey(Generation, on_delete=models.CASCADE, related_name="assignments")
    job = models.ForeignKey(Job, on_delete=models.CASCADE, related_name="assignments")
    gpu = models.ForeignKey(Gpu, on_delete=models.PROTECT, related_name="assignments")
    rank = models.PositiveIntegerField()
    #: Port where this rank serves its shard to a successor, on its own server; null without one.
    handover_port = models.PositiveIntegerField(null=True, blank=True)
    state = models.CharField(max_length=10, choices=AssignmentState.choices, default=AssignmentState.WAITING)
    held_at = models.DateTimeField(null=True, blank=True)
    released_at = models.DateTimeField(null=True, blank=True)
    #: The first desired version of the server that orders the GPU's release.
    clear_version = models.BigIntegerField(default=0)
    #: Whether the job can go on without it: the planner marks GPUs beyond the job's lowest level.
    flexible = models.BooleanField(default=False)

    class Meta:
        constraints = [
            models.UniqueConstraint(fields=["generation", "rank"], name="rank_once_per_generation"),
            models.UniqueConstraint(fields=["generation", "gpu"], name="gpu_once_per_generation"),
            ExclusionConstraint(
                name="gpu_has_one_owner",
                expressions=[("gpu", RangeOperators.EQUAL), ("job", RangeOperators.NOT_EQUAL)],
                condition=Q(state__in=[AssignmentState.HELD, AssignmentState.CLEARING]),
            ),
        ]
        indexes = [
            models.Index(
                fields=["gpu"], condition=~Q(state=AssignmentState.RELEASED), name="assignment_unreleased"
            )
        ]


class Worker(models.Model):
    """A worker as its agent last reported it."""

    generation = models.ForeignKey(Generation, on_delete=models.CASCADE, related_name="workers")
    server = models.ForeignKey(Server, on_delete=models.CASCADE, related_name="workers")
    rank = models.PositiveIntegerField()
    #: The agent's identifier of the worker.
    key = models.CharField(max_length=100)
    gpu_index = models.PositiveIntegerField()
    #: Last reported phase.
    phase = models.CharField(max_length=20)
    #: How it ended; null while it runs.
    exit = models.JSONField(null=True, blank=True)
    changed_at = models.DateTimeField(default=timezone.now)
    #: When it had nothing left to do but load its state; null before.
    ready_at = models.DateTimeField(null=True, blank=True)
    #: Whether the agent no longer has it.
    gone = models.BooleanField(default=False)

    class Meta:
        constraints = [models.UniqueConstraint(fields=["generation", "rank"], name="worker_once_per_rank")]
