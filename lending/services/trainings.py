"""Training of usage forecasters (Lyra section 3.6): rows with leases, progress and a cancel flag.

Rows define the work; messages only wake a worker of the queue `forecasting`. Nothing else waits for a model.
"""

from __future__ import annotations

from datetime import timedelta
from math import isfinite

from django.db import IntegrityError, transaction
from django.utils import timezone

from lending.forecasting.registry import PERSISTENCE
from lending.forecasting.sampling import LONGEST_HISTORY, SAMPLES_PER_DAY
from lending.models import ForecasterTraining, InferenceCluster
from lending.services.usage import recent_usage
from projects.errors import Conflict
from scheduling.services.long_work.long_tasks import LongTask

#: Interval between trainings of a cluster's model.
RETRAIN_AFTER = timedelta(days=1)
#: The network's three days: fitted to fewer samples it is worse than persistence.
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
        Conflict: one is queued or under way, or the forecaster needs no training.
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
    """Cancel a queued training at once, a running one at its next epoch. A finished one stays as it is."""
    return TRAININGS.cancel(training)


def start_due_trainings() -> int:
    """Queue a training for every cluster without a training of its forecaster in the last day. Returns how
    many.

    A failed training is retried only after that day: the next samples may be what it lacked.
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
        # `least_samples` of the network's class would load PyTorch here, so one limit holds for all. The fit
        # itself refuses too few samples.
        if sum(map(isfinite, found[0])) < LEAST_SAMPLES:
            continue
        try:
            training_start(inference_cluster=inference_cluster)
        except Conflict:
            continue  # an operator has started one
        count += 1
    return count
