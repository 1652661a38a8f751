"""Inference clusters, their orders, their usage and forecasts."""

from lending.models.inference_clusters import InferenceCluster, LendingEvent
from lending.models.orders import LoanOrder, ReclaimedServer, ReclaimOrder
from lending.models.usage import ForecasterTraining, TrainedForecaster, UsageForecast, UsageSample

__all__ = [
    "ForecasterTraining",
    "InferenceCluster",
    "LendingEvent",
    "LoanOrder",
    "ReclaimOrder",
    "ReclaimedServer",
    "TrainedForecaster",
    "UsageForecast",
    "UsageSample",
]
