"""Forecasts of the usage that inference clusters report (Lyra section 3.6)."""

from __future__ import annotations

from datetime import timedelta

import structlog
from django.utils import timezone

from lending.forecasting.errors import ForecasterError
from lending.forecasting.forecaster import Forecaster
from lending.forecasting.persistence import Persistence
from lending.forecasting.registry import load_forecaster
from lending.forecasting.sampling import WINDOW
from lending.models import InferenceCluster, TrainedForecaster, UsageForecast
from lending.services.usage import recent_usage
from scheduling.services.rows.wakeups import hint, wake

log = structlog.get_logger(__name__)


def forecast_usage(inference_cluster_id: int) -> UsageForecast | None:
    """Forecast the usage of the next period and wake the orchestrator.

    Without a usable trained model, the last sample is the forecast. Returns None before the first sample.
    """
    inference_cluster = InferenceCluster.objects.filter(pk=inference_cluster_id).first()
    found = None if inference_cluster is None else recent_usage(inference_cluster, WINDOW)
    if inference_cluster is None or found is None:
        return None
    usage, ended_at = found
    forecaster, trained = _forecaster(inference_cluster)
    forecast, _ = UsageForecast.objects.update_or_create(
        inference_cluster=inference_cluster,
        period_ends_at=ended_at + timedelta(seconds=inference_cluster.period_seconds),
        defaults={
            "usage": forecaster.forecast(usage),
            "forecaster": forecaster.name,
            "trained": trained,
            "made_at": timezone.now(),
        },
    )
    hint(f"cluster:{inference_cluster.cluster_id}", kind="usage")
    wake("orchestrate")
    return forecast


def _forecaster(inference_cluster: InferenceCluster) -> tuple[Forecaster, TrainedForecaster | None]:
    """Return the latest model of the cluster's forecaster if it is better than persistence, else
    persistence."""
    trained = inference_cluster.trained_forecasters.filter(forecaster=inference_cluster.forecaster).first()
    if trained is None or trained.error >= trained.persistence_error:
        return Persistence(), None
    try:
        return load_forecaster(trained.forecaster, bytes(trained.content)), trained
    except ForecasterError as error:
        log.warning("forecaster not usable", inference_cluster=inference_cluster.name, error=str(error))
        return Persistence(), None
