"""Requests to a deployed model, through the platform."""

from __future__ import annotations

from drf_spectacular.utils import OpenApiResponse, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from deployments.api.requests import PredictRequestSerializer
from deployments.api.serializers import DeploymentHealthSerializer, DeploymentPredictionSerializer
from deployments.models import Deployment
from deployments.selectors.deployments import deployment_get, deployment_to_change
from deployments.services.predicting import predict, replica_health
from projects.api.base import ApiView
from projects.api.serializers import ProblemSerializer
from projects.models import Scope

PROBLEM = "application/problem+json"


@extend_schema(tags=["deployments"])
class PredictView(ApiView):
    """Predictions of a deployed model."""

    queryset = Deployment.objects.none()
    token_scopes = {"POST": Scope.SUBMIT}

    @extend_schema(
        operation_id="deployment_predict",
        summary="Ask the deployed model",
        description=(
            "One of the deployment's servers answers. A web process passes on few requests at a time; "
            "clients with many requests ask the servers themselves, with a token of the deployment."
        ),
        request=PredictRequestSerializer,
        responses={
            200: DeploymentPredictionSerializer,
            (502, PROBLEM): OpenApiResponse(ProblemSerializer, description="The function failed."),
            (504, PROBLEM): OpenApiResponse(
                ProblemSerializer, description="The function did not answer in time."
            ),
        },
    )
    def post(self, request: Request, deployment_id: str) -> Response:
        found = deployment_to_change(self.user, deployment_id)
        return Response(predict(found, self.read(PredictRequestSerializer)["inputs"]))


@extend_schema(tags=["deployments"])
class HealthView(ApiView):
    """Whether a deployment answers."""

    queryset = Deployment.objects.none()

    @extend_schema(
        operation_id="deployment_health",
        summary="Ask each server of a deployment for its state",
        responses=DeploymentHealthSerializer,
    )
    def get(self, request: Request, deployment_id: str) -> Response:
        servers = replica_health(deployment_get(self.user, deployment_id))
        return Response(
            {"healthy": any(health["state"] == "serving" for health in servers), "servers": servers}
        )
