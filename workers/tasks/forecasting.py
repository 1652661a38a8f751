"""Tasks of the queue `forecasting`, which may load PyTorch."""

from __future__ import annotations

from celery import shared_task

from workers.tasks.common import RETRY, be_nice


@shared_task(name="workers.tasks.forecast_usage", **RETRY)
def forecast_usage(inference_cluster_id: int) -> None:
    """Forecast the usage of an inference cluster's next period."""
    # Imported here, as below: without lending, this queue's worker never needs it.
    from lending.services import forecasts

    forecasts.forecast_usage(inference_cluster_id)


@shared_task(name="workers.tasks.train_forecaster", soft_time_limit=1740, time_limit=1800, **RETRY)
def train_forecaster(training_id: int) -> None:
    """Run a queued training."""
    be_nice()
    from lending.services import learning

    learning.training_run(training_id)
