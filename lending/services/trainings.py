"""Training of usage forecasters (Lyra section 3.6; spec 2.2): rows with leases, progress and a cancel flag.

The rows say what is to be done; messages only wake a worker of the queue `forecasting`. Nothing else waits
for a model.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

import numpy as np
import structlog
from django.db import IntegrityError, OperationalError, transaction
from django.utils import timezone

from cluster.choices import FINAL_WORK_STATES, WorkState
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
from scheduling.services.wakeups import hint, wake

log = structlog.get_logger(__name__)

#: A worker that is alive renews its lease at every epoch, which takes a second or two.
LEASE = timedelta(seconds=120)
#: Epochs may be short: the row is written no more often than this.
RENEW_SECONDS = 0.5
#: A message older than this has expired in the broker; the sweep sends another.
MESSAGE_LASTS = timedelta(seconds=65)
MOST_ATTEMPTS = 3
#: A model is made anew so often.
RETRAIN_AFTER = timedelta(days=1)
KEPT_MODELS = 5
#: The network's three days: with fewer samples it knows less than the last one says.
LEAST_SAMPLES = 3 * SAMPLES_PER_DAY


class TrainingStopped(Exception):
    """It was cancelled, or another worker has it: nothing more of it may be written."""


@dataclass(frozen=True)
class ClaimedTraining:
    """A training that this worker holds, and the token under which it may write."""

    training: ForecasterTraining
    token: str

    def end(self, **values: Any) -> bool:
        """End the training. False where it is another worker's already."""
        return self.training.end(self.token, **values)


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
                wake_at=timezone.now() + MESSAGE_LASTS,
            )
            wake("train_forecaster", training_id=training.pk)
    except IntegrityError as error:
        raise Conflict(f"A training of {name} is queued or under way already.") from error
    return training


@transaction.atomic
def training_cancel(*, training: ForecasterTraining) -> ForecasterTraining:
    """Cancel at once while it is queued, at its next epoch while it runs. A finished one stays as it is."""
    training = ForecasterTraining.objects.select_for_update().get(pk=training.pk)
    if training.state in FINAL_WORK_STATES:
        return training
    training.cancel_requested = True
    if training.state == WorkState.QUEUED:
        training.state, training.finished_at = WorkState.CANCELLED, timezone.now()
    training.save(update_fields=["cancel_requested", "state", "finished_at"])
    return training


def training_run(training_id: int) -> bool:
    """Train, if it is queued and nobody else takes it. Returns whether a model was stored."""
    claimed = _claim(training_id)
    if claimed is None:
        return False
    try:
        return _train(claimed)
    except TrainingStopped:
        log.info("training stopped", training=training_id)
        claimed.end(state=WorkState.CANCELLED)
    except (ForecasterError, ValueError) as error:
        claimed.end(state=WorkState.FAILED, error=str(error)[:2000])
    except OperationalError:
        raise  # the database is away: the lease runs out, and another attempt follows
    except Exception as error:
        claimed.end(state=WorkState.FAILED, error=f"{type(error).__name__}: {error}"[:2000])
        raise
    return False


@transaction.atomic
def _claim(training_id: int) -> ClaimedTraining | None:
    training = ForecasterTraining.lock_queued(training_id, "inference_cluster")
    if training is None:
        return None
    token = training.take(LEASE)
    training.epochs_done = training.epochs_at_most = 0
    training.save()
    return ClaimedTraining(training, token)


def _train(claimed: ClaimedTraining) -> bool:
    training = claimed.training
    found = recent_usage(training.inference_cluster, LONGEST_HISTORY)
    if found is None:
        raise TooFewSamples("no usage has been reported yet")
    usage, ended_at = found
    forecaster = make_forecaster(training.forecaster)
    report = forecaster.fit(usage, _Progress(claimed))
    return _store(claimed, forecaster, report, int(np.isfinite(usage).sum()), ended_at)


class _Progress:
    """Renews the lease between epochs. Raises TrainingStopped where the training shall not go on."""

    def __init__(self, claimed: ClaimedTraining) -> None:
        self._claimed = claimed
        self._next = 0.0

    def __call__(self, epochs_done: int, epochs_at_most: int) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + RENEW_SECONDS
        held = self._claimed.training.held(self._claimed.token)
        kept = held.update(
            lease_expires_at=timezone.now() + LEASE, epochs_done=epochs_done, epochs_at_most=epochs_at_most
        )
        if not kept or held.filter(cancel_requested=True).exists():
            raise TrainingStopped


def _store(
    claimed: ClaimedTraining, forecaster: Forecaster, report: FitReport, samples: int, learned_until: datetime
) -> bool:
    """Model and end of the training in one transaction; a stale worker's model is thrown away."""
    training = claimed.training
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
        if not claimed.end(
            state=WorkState.DONE,
            trained=trained,
            epochs_done=report.epochs,
            epochs_at_most=max(report.epochs, training.epochs_at_most),
        ):
            transaction.set_rollback(True)
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


def sweep_trainings() -> int:
    """Queue trainings again whose worker is gone, and send messages again that were lost. Returns how
    many."""
    now = timezone.now()
    count = 0
    with transaction.atomic():
        for training in ForecasterTraining.lock_lost(now):
            error = f"Its worker process was lost {training.attempts} times."
            if training.take_back(now, most_attempts=MOST_ATTEMPTS, error=error):
                training.wake_at = now
            training.save()
            count += 1
        overdue = ForecasterTraining.objects.select_for_update(skip_locked=True).filter(
            state=WorkState.QUEUED, wake_at__lte=now
        )
        for training in overdue:
            training.wake_at = now + MESSAGE_LASTS
            training.save(update_fields=["wake_at"])
            wake("train_forecaster", training_id=training.pk)
            count += 1
    return count
