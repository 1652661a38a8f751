"""Decisions with their reasons and snapshots, passes, offers, and outbox messages."""

from __future__ import annotations

from django.db import models
from django.db.models import Q
from django.utils import timezone

from cluster.models import Cluster
from projects.models import Project
from scheduling.choices import OfferState
from scheduling.models.jobs import Job


class Decision(models.Model):
    """One answer of the planner. ``snapshot`` is its whole input, compressed, so that it can be replayed."""

    class Kind(models.TextChoices):
        ADMISSION = "admission", "Admission"
        REALLOCATION = "reallocation", "Reallocation"

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="decisions")
    kind = models.CharField(max_length=12, choices=Kind.choices)
    #: Name of the policy.
    policy = models.CharField(max_length=40)
    epoch = models.BigIntegerField()
    planning_version = models.BigIntegerField()
    decided_at = models.DateTimeField(default=timezone.now, db_index=True)
    #: The events that made the planner decide.
    trigger = models.CharField(max_length=200, blank=True)
    #: Verdicts, changes, at-risk jobs and notes, as JSON.
    summary = models.JSONField(default=dict)
    snapshot = models.BinaryField(null=True, blank=True)
    compute_seconds = models.FloatField(default=0.0)
    #: Duration of its pass, from reading the rows to the commit; null until the commit.
    pass_seconds = models.FloatField(null=True, blank=True)
    code_version = models.CharField(max_length=64, blank=True)
    jobs = models.ManyToManyField(Job, related_name="decisions")

    class Meta:
        ordering = ["-id"]


class PlannerPass(models.Model):
    """Duration of one pass of the planner, with or without decisions; no verdict is given meanwhile.
    Passes that found nothing to do are not stored."""

    cluster = models.ForeignKey(Cluster, on_delete=models.CASCADE, related_name="planner_passes")
    ended_at = models.DateTimeField(default=timezone.now, db_index=True)
    #: Duration of the pass.
    seconds = models.FloatField()
    #: Number of its steps that were computed again because facts had changed.
    overtaken = models.PositiveSmallIntegerField(default=0)
    #: Duration of each step, all attempts together.
    seconds_by_step = models.JSONField(default=dict)
    #: It ended with an error: no plan, a time limit, the database.
    failed = models.BooleanField(default=False)


class Offer(models.Model):
    """A deadline that can be promised, held for a short time. A project has one open at a time."""

    job = models.OneToOneField(Job, on_delete=models.CASCADE, related_name="offer")
    project = models.ForeignKey(Project, on_delete=models.CASCADE, related_name="offers")
    deadline_at = models.DateTimeField()
    plan = models.JSONField()
    state = models.CharField(max_length=10, choices=OfferState.choices, default=OfferState.OPEN)
    created_at = models.DateTimeField(default=timezone.now)
    valid_until = models.DateTimeField()
    accepted_job = models.OneToOneField(
        Job, on_delete=models.SET_NULL, null=True, related_name="accepted_offer"
    )

    class Meta:
        constraints = [
            models.UniqueConstraint(
                fields=["project"], condition=Q(state=OfferState.OPEN), name="project_has_one_open_offer"
            )
        ]


class OutboxMessage(models.Model):
    """A wake-up that follows from committed rows. Sent on commit; a sweeper sends what is left."""

    topic = models.CharField(
        max_length=100, help_text="plan, reconcile, agent:<server id>, job:<id>, cluster:<id>"
    )
    #: Arguments of the message.
    payload = models.JSONField(default=dict)
    created_at = models.DateTimeField(default=timezone.now, db_index=True)
    #: Number of repeated sends by the sweeper.
    attempts = models.PositiveIntegerField(default=0)
    due_at = models.DateTimeField(default=timezone.now, db_index=True)
