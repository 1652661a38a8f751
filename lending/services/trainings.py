"""Training of usage forecasters (Lyra section 3.6; spec 2.2): rows with leases, progress and a cancel flag.

The rows say what is to be done; messages only wake a worker of the queue `forecasting`. Nothing else waits
for a model.
"""

from __future__ import annotations

from datetime import datetime, timedelta

import numpy as np
import structlog
from django.db import IntegrityError, transaction
from django.utils import timezone

from lending.forecasting.forecaster import (
    SAMPLES_PER_DAY,
    FitReport,
    Forecaster,
    ForecasterError,
    TooFewSamples,
)
from lending.forecasting.registry import make_forecaster
from lending.forecasting.rolling import LONGEST_HISTORY
from lending.models import ForecasterTraining, InferenceCluster, TrainedForecaster
from lending.services.usage import PERSISTENCE, recent_usage
from projects.errors import Conflict
from scheduling.services.long_tasks import Attempt, LongTask
from scheduling.services.wakeups import hint, wake

log = structlog.get_logger(__name__)

#: A model is made anew so often.
RETRAIN_AFTER = timedelta(days=1)
KEPT_MODELS = 5
#: The network's three days: with fewer samples it knows less than the last one says.
LEAST_SAMPLES = 3 * SAMPLES_PER_DAY


TRAININGS = LongTask(
    rows=ForecasterTraining,
    topic="train_forecaster",
    argument="training_id",
    related=("inference_cluster",),
    progress={"epochs_done": 0, "epochs_at_most": 0},
)


def training_start(
    *, inference_cluster: InferenceCluster, forecaster: str = "", created_by: str = ""
) -> ForecasterTraining:
    """Queue a training of the named forecaster, by default the cluster's own.

    Raises:
        Conflict: one is queued or under way, or there is nothing to train.
    """
    name = forecaster or inference_cluster.forecaster
    if name == PERSISTENCE:
        raise Conflict("The last sample as forecast needs no training.")
    try:
        with transaction.atomic():
            training = ForecasterTraining.objects.create(
                inference_cluster=inference_cluster,
                forecaster=name,
                created_by=created_by,
            )
            TRAININGS.announce(training)
    except IntegrityError as error:
        raise Conflict(f"A training of {name} is queued or under way already.") from error
    return training


def training_cancel(*, training: ForecasterTraining) -> ForecasterTraining:
    """Cancel at once while it is queued, at its next epoch while it runs. A finished one stays as it is."""
    return TRAININGS.cancel(training)


def training_run(training_id: int) -> bool:
    """Train, if it is queued and nobody else takes it. Returns whether a model was stored."""
    return TRAININGS.work_off(training_id, _train, explain=_explained)


def _explained(error: Exception) -> str | None:
    return str(error) if isinstance(error, (ForecasterError, ValueError)) else None


def _train(attempt: Attempt[ForecasterTraining]) -> bool:
    training = attempt.row
    found = recent_usage(training.inference_cluster, LONGEST_HISTORY)
    if found is None:
        raise TooFewSamples("no usage has been reported yet")
    usage, ended_at = found
    forecaster = make_forecaster(training.forecaster)

    def told(epochs_done: int, epochs_at_most: int) -> None:
        attempt.told(epochs_done=epochs_done, epochs_at_most=epochs_at_most)

    report = forecaster.fit(usage, told)
    return _store(attempt, forecaster, report, int(np.isfinite(usage).sum()), ended_at)


def _store(
    attempt: Attempt[ForecasterTraining],
    forecaster: Forecaster,
    report: FitReport,
    samples: int,
    learned_until: datetime,
) -> bool:
    """Model and end of the training in one transaction; a stale worker's model is thrown away."""
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


# What follows from time -------------------------------------------------------------------------------


def start_due_trainings() -> int:
    """Queue a training for every cluster whose newest model is a day old, or that has none yet. Returns how
    many.

    A training that failed is not tried again before the day is over: the next samples may be what it lacked.
    """
    since = timezone.now() - RETRAIN_AFTER
    count = 0
    for inference_cluster in InferenceCluster.objects.exclude(forecaster=PERSISTENCE):
        recent = inference_cluster.trainings.filter(
            forecaster=inference_cluster.forecaster, created_at__gt=since
        )
        found = recent_usage(inference_cluster, LONGEST_HISTORY)
        if recent.exists() or found is None:
            continue
        # A class says what it needs, but to ask the network's would load PyTorch here: the fit itself refuses
        # too few.
        if np.isfinite(found[0]).sum() < LEAST_SAMPLES:
            continue
        try:
            training_start(inference_cluster=inference_cluster)
        except Conflict:
            continue  # an operator was quicker
        count += 1
    return count
