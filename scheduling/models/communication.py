"""Measured gradients and the communication plans made from them (Zen, Espresso and Cupcake, section 7)."""

from __future__ import annotations

from django.db import models
from django.utils import timezone


class GradientProfile(models.Model):
    """Measured gradients of a function with certain hyperparameters on a number of GPUs of a kind.

    ``content``: the worker's record (`punctual/protocol/communication.py`). A newer record replaces it only
    if it differs by more than a fifth, so that plans are not made again needlessly.
    """

    #: Key of function, data, kind of GPU and hyperparameters (`curve_keys.function_key_on`).
    key = models.CharField(max_length=64)
    gpu_kind = models.CharField(max_length=100)
    gpus = models.PositiveIntegerField()
    content = models.JSONField()
    #: When the content was measured, and when it was last confirmed.
    measured_at = models.DateTimeField(default=timezone.now)
    confirmed_at = models.DateTimeField(default=timezone.now)
    #: Plan families that jobs requested besides the common ones.
    families = models.JSONField(default=list, blank=True)
    #: Latency and bytes a second between servers for which its plans are made.
    links = models.JSONField(default=list, blank=True)
    #: Digest of its plans' inputs; empty if plans are to be made.
    planned_from = models.CharField(max_length=64, blank=True)

    class Meta:
        ordering = ["key", "gpus"]
        constraints = [models.UniqueConstraint(fields=["key", "gpus"], name="gradient_profile_once")]


class GradientPlan(models.Model):
    """The fastest plan of a family for these gradients on one placement shape, and the plans that it beat.

    Predictions serve the choice and are shown to people; promises depend on measured levels.
    """

    profile = models.ForeignKey(GradientProfile, on_delete=models.CASCADE, related_name="plans")
    family = models.CharField(max_length=100)
    servers = models.PositiveIntegerField()
    gpus_per_server = models.PositiveIntegerField()
    #: Digest of the question that was answered.
    question = models.CharField(max_length=64)
    #: Name of the planner whose plan was chosen.
    planner = models.CharField(max_length=20)
    #: Name of the plan's codec; empty without one.
    codec = models.CharField(max_length=100)
    #: The chosen candidate, the ranks' orders, and the beaten candidates, the fastest first.
    chosen = models.JSONField()
    messages = models.JSONField(default=dict)
    beaten = models.JSONField(default=list)
    #: Predicted timeline of one iteration: what is done to each group when (`PredictedSpan`).
    spans = models.JSONField(blank=True, default=list)
    #: Predicted speedup over no plan.
    speedup = models.FloatField()
    made_at = models.DateTimeField(default=timezone.now)
    #: Measured seconds of an iteration, and why the plan was given up; empty if it was not.
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
        """Whether generations follow it; otherwise they use no plan."""
        return self.planner != "dense" and not self.given_up
