"""Usage of inference clusters, its forecasts, and trained forecasters (Lyra section 3.6)."""

from __future__ import annotations

from datetime import datetime
from typing import ClassVar

from django.db import models
from django.db.models import F, Q
from django.utils import timezone

from cluster.choices import FINAL_WORK_STATES, WorkState
from cluster.models.leased_work import LeasedWork, lease_constraints
from lending.models.inference_clusters import InferenceCluster

MOST_SOURCE_CHARACTERS = 200


class UsageSample(models.Model):
    """Mean usage of one period as its scheduler reported it: the share of GPUs that serve requests, 0 to 1.

    ``shortfall_servers``: servers missing at home for that usage, with ``on_loan_servers`` away.
    ``seen_shortfall_servers``: missing servers as the inference side reported them; null if it did not.
    ``source``: origin of the figure: `MEASURED`, or a substitute for a measurement; empty if unknown.
    """

    MEASURED: ClassVar[str] = "measured"

    inference_cluster = models.ForeignKey(
        InferenceCluster, on_delete=models.CASCADE, related_name="usage_samples"
    )
    period_ends_at = models.DateTimeField()
    #: Mean share of GPUs that served requests, 0 to 1.
    usage = models.FloatField()
    reported_at = models.DateTimeField(default=timezone.now)
    on_loan_servers = models.PositiveIntegerField(default=0)
    shortfall_servers = models.PositiveIntegerField(default=0)
    seen_shortfall_servers = models.PositiveIntegerField(null=True, blank=True)
    source = models.CharField(max_length=MOST_SOURCE_CHARACTERS, blank=True)

    class Meta:
        ordering = ["period_ends_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["inference_cluster", "period_ends_at"], name="usage_once_per_period"
            ),
            models.CheckConstraint(condition=Q(usage__gte=0.0, usage__lte=1.0), name="usage_is_a_share"),
        ]


class TrainedForecaster(models.Model):
    """A fitted model as bytes (`lending/forecasting/storage.py`), never a pickle.

    ``error`` and ``persistence_error``: mean squared errors on the validation set.
    """

    inference_cluster = models.ForeignKey(
        InferenceCluster, on_delete=models.CASCADE, related_name="trained_forecasters"
    )
    forecaster = models.CharField(max_length=40)
    #: The fitted model, serialized.
    content = models.BinaryField()
    #: Number of usage samples that it was fitted to.
    samples = models.PositiveIntegerField()
    #: End of the newest period that it learned from.
    learned_until = models.DateTimeField()
    error = models.FloatField()
    persistence_error = models.FloatField()
    trained_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["-trained_at"]


class UsageForecast(models.Model):
    """Forecast usage of the period that ends at ``period_ends_at``. ``trained`` is null for persistence."""

    inference_cluster = models.ForeignKey(
        InferenceCluster, on_delete=models.CASCADE, related_name="forecasts"
    )
    period_ends_at = models.DateTimeField()
    #: Forecast share of GPUs that serve requests, 0 to 1.
    usage = models.FloatField()
    forecaster = models.CharField(max_length=40)
    trained = models.ForeignKey(TrainedForecaster, on_delete=models.SET_NULL, null=True, related_name="+")
    made_at = models.DateTimeField(default=timezone.now)

    class Meta:
        ordering = ["period_ends_at"]
        constraints = [
            models.UniqueConstraint(
                fields=["inference_cluster", "period_ends_at"], name="forecast_once_per_period"
            ),
            models.CheckConstraint(condition=Q(usage__gte=0.0, usage__lte=1.0), name="forecast_is_a_share"),
        ]


class ForecasterTraining(LeasedWork):
    """One training of a forecaster."""

    inference_cluster = models.ForeignKey(
        InferenceCluster, on_delete=models.CASCADE, related_name="trainings"
    )
    forecaster = models.CharField(max_length=40)
    created_by = models.CharField(max_length=150, blank=True)
    epochs_done = models.PositiveIntegerField(default=0)
    epochs_at_most = models.PositiveIntegerField(default=0)
    trained = models.OneToOneField(TrainedForecaster, on_delete=models.SET_NULL, null=True, related_name="+")

    class Meta:
        ordering = ["-id"]
        constraints = [
            *lease_constraints("training"),
            models.UniqueConstraint(
                fields=["inference_cluster", "forecaster"],
                condition=~Q(state__in=FINAL_WORK_STATES),
                name="one_unfinished_training_per_forecaster",
            ),
            models.CheckConstraint(
                condition=Q(epochs_done__lte=F("epochs_at_most")), name="training_has_known_epochs"
            ),
        ]

    def progress(self) -> float:
        """Return the share of the epochs that are done, 0 to 1. A training may stop before the last epoch."""
        if self.state == WorkState.DONE:
            return 1.0
        return self.epochs_done / self.epochs_at_most if self.epochs_at_most else 0.0

    def seconds_running(self, now: datetime) -> float | None:
        """Return the seconds that the current or last attempt has taken so far; None before the first."""
        if self.started_at is None:
            return None
        return ((self.finished_at or now) - self.started_at).total_seconds()
