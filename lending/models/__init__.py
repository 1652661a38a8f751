"""Inference clusters, what they lend and ask back, how much of them serves requests and what is expected of
that."""

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
