"""The work of a training: fit a forecaster to the reported usage and store it."""

from __future__ import annotations

from datetime import datetime
from math import isfinite

from django.db import transaction

from lending.forecasting.errors import ForecasterError, TooFewSamples
from lending.forecasting.forecaster import FitReport, Forecaster
from lending.forecasting.registry import make_forecaster
from lending.forecasting.sampling import LONGEST_HISTORY
from lending.models import ForecasterTraining, TrainedForecaster
from lending.services.trainings import TRAININGS
from lending.services.usage import recent_usage
from scheduling.services.long_work.long_tasks import TaskAttempt
from scheduling.services.rows.wakeups import hint, wake

KEPT_MODELS = 5


def training_run(training_id: int) -> bool:
    """Run the training if it is queued and no other worker takes it. Returns whether a model was stored."""
    return TRAININGS.work_off(training_id, _train, explain=_explained)


def _explained(error: Exception) -> str | None:
    return str(error) if isinstance(error, (ForecasterError, ValueError)) else None


def _train(attempt: TaskAttempt[ForecasterTraining]) -> bool:
    training = attempt.row
    found = recent_usage(training.inference_cluster, LONGEST_HISTORY)
    if found is None:
        raise TooFewSamples("no usage has been reported yet")
    usage, ended_at = found
    forecaster = make_forecaster(training.forecaster)

    def told(epochs_done: int, epochs_at_most: int) -> None:
        attempt.told(epochs_done=epochs_done, epochs_at_most=epochs_at_most)

    report = forecaster.fit(usage, told)
    return _store(attempt, forecaster, report, sum(map(isfinite, usage)), ended_at)


def _store(
    attempt: TaskAttempt[ForecasterTraining],
    forecaster: Forecaster,
    report: FitReport,
    samples: int,
    learned_until: datetime,
) -> bool:
    """Store the model and end the training in one transaction; discard a stale worker's model."""
    training = attempt.row
    with transaction.atomic():
        trained = TrainedForecaster.objects.create(
            inference_cluster=training.inference_cluster,
            forecaster=training.forecaster,
            content=forecaster.to_bytes(),
            samples=samples,
            learned_until=learned_until,
            error=report.error,
            persistence_error=report.persistence_error,
        )
        if not attempt.finish(
            trained=trained,
            epochs_done=report.epochs,
            epochs_at_most=max(report.epochs, training.epochs_at_most),
        ):
            trained.delete()
            return False
        _forget_old_models(training)
        wake("forecast_usage", inference_cluster_id=training.inference_cluster_id)
    hint(f"cluster:{training.inference_cluster.cluster_id}", kind="usage")
    return True


def _forget_old_models(training: ForecasterTraining) -> None:
    models = TrainedForecaster.objects.filter(
        inference_cluster=training.inference_cluster, forecaster=training.forecaster
    )
    kept = list(models.order_by("-trained_at", "-pk").values_list("pk", flat=True)[:KEPT_MODELS])
    models.exclude(pk__in=kept).delete()
