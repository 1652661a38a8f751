"""Addresses of deployments below /api/v1/."""

from django.urls import path

from deployments.api.views import deployments, predictions, records, tokens
from projects.api import converters as _converters  # noqa: F401 - registers them

_ONE = "deployments/<job:deployment_id>/"

urlpatterns = [
    path("deployments/", deployments.DeploymentsView.as_view(), name="deployments"),
    path(_ONE, deployments.DeploymentView.as_view(), name="deployment"),
    path(f"{_ONE}rollback/", deployments.RollbackView.as_view(), name="deployment-rollback"),
    path(f"{_ONE}drain/", deployments.DrainView.as_view(), name="deployment-drain"),
    path(f"{_ONE}predict/", predictions.PredictView.as_view(), name="deployment-predict"),
    path(f"{_ONE}health/", predictions.HealthView.as_view(), name="deployment-health"),
    path(f"{_ONE}samples/", records.SamplesView.as_view(), name="deployment-samples"),
    path(f"{_ONE}experts/", records.ExpertsView.as_view(), name="deployment-experts"),
    path(f"{_ONE}events/", records.EventsView.as_view(), name="deployment-events"),
    path(f"{_ONE}logs/", records.LogsView.as_view(), name="deployment-logs"),
    path(f"{_ONE}tokens/", tokens.TokensView.as_view(), name="deployment-tokens"),
    path(f"{_ONE}tokens/<row:token_id>/", tokens.TokenView.as_view(), name="deployment-token"),
]
