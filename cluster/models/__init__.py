"""What exists: clusters, servers, GPUs, agents and enrolment; inference clusters, what they lend and what
they need."""

from cluster.models.forecasting import ForecasterTraining, TrainedForecaster, UsageForecast, UsageSample
from cluster.models.inference import InferenceCluster, LendingEvent
from cluster.models.machines import Agent, Cluster, EnrolmentToken, Gpu, Server, UtilisationSample
from cluster.models.orders import LoanOrder, ReclaimedServer, ReclaimOrder

__all__ = [
    "Agent",
    "Cluster",
    "EnrolmentToken",
    "ForecasterTraining",
    "Gpu",
    "InferenceCluster",
    "LendingEvent",
    "LoanOrder",
    "ReclaimOrder",
    "ReclaimedServer",
    "Server",
    "TrainedForecaster",
    "UsageForecast",
    "UsageSample",
    "UtilisationSample",
]
