"""What was measured of gradients, and the plans made of it (Zen, Espresso and Cupcake, section 7)."""

from __future__ import annotations

from django.db import models
from django.utils import timezone


class GradientProfile(models.Model):
    """The gradients of a function with certain hyperparameters on so many GPUs of a kind, as measured.

    ``content`` is the worker's record (`punctual/protocol/communication.py`). It is replaced where a newer
    one differs by more than a fifth, so that plans are not made anew for nothing.
    """

    #: Of function, data, kind of GPU and hyperparameters (`curve_keys.function_key_on`).
    key = models.CharField(max_length=64)
    gpu_kind = models.CharField(max_length=100)
    gpus = models.PositiveIntegerField()
    content = models.JSONField()
    #: When the content was measured, and when it was last found to hold.
    measured_at = models.DateTimeField(default=timezone.now)
    confirmed_at = models.DateTimeField(default=timezone.now)
    #: Plan families that jobs asked for beside the common ones.
    families = models.JSONField(default=list, blank=True)
    #: Latency and bytes a second between servers that plans are made for.
    links = models.JSONField(default=list, blank=True)
    #: Digest of what its plans were made of; empty: they are to be made.
    planned_from = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering = ["key", "gpus"]
        constraints = [models.UniqueConstraint(fields=["key", "gpus"], name="gradient_profile_once")]


class GradientPlan(models.Model):
    """The fastest plan of a family for these gradients on one shape of placement, beside those that it beat.

    What it predicts is for the choice and for people alone: promises rest on measured levels.
    """

    profile = models.ForeignKey(GradientProfile, on_delete=models.CASCADE, related_name="plans")
    family = models.CharField(max_length=100)
    servers = models.PositiveIntegerField()
    gpus_per_server = models.PositiveIntegerField()
    #: Digest of the question that it answers.
    question = models.CharField(max_length=64)
    planner = models.CharField(max_length=20)
    codec = models.CharField(max_length=100)
    #: The candidate that was chosen, what ranks carry out of it, and those that it beat, the fastest first.
    chosen = models.JSONField()
    messages = models.JSONField(default=dict)
    beaten = models.JSONField(default=list)
    #: One iteration as it is predicted: what is done to each group when (`PredictedSpan`).
    spans = models.JSONField(blank=True, default=list)
    #: Predicted, over no plan at all.
    speedup = models.FloatField()
    made_at = models.DateTimeField(default=timezone.now)
    #: Seconds of an iteration as jobs showed them, and why the plan was given up; empty: it was not.
    measured_seconds = models.FloatField(null=True, blank=True)
    given_up = models.CharField(max_length=300, blank=True)

    class Meta:
        ordering = ["profile_id", "family", "servers"]
        constraints = [
            models.UniqueConstraint(
                fields=["profile", "family", "servers", "gpus_per_server"], name="gradient_plan_once"
            )
        ]

    @property
    def carried_out(self) -> bool:
        """Whether generations follow it; otherwise they do without any plan."""
        return self.planner != "dense" and not self.given_up
