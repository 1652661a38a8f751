"""What a deployment answered, its history, and the logs of its replicas."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from deployments.api import serializers as shapes
from deployments.api.expert_serializers import DeploymentExpertsSerializer
from deployments.models import Deployment, DeploymentEvent, DeploymentSample, Replica
from deployments.selectors.deployments import (
    deployment_events,
    deployment_get,
    deployment_samples,
    newest_replicas,
)
from deployments.selectors.experts import deployment_experts
from projects.api.base import ApiView
from projects.api.pagination import NewestFirstCursorPagination


class LatestSampleFirst(NewestFirstCursorPagination):
    """Samples by the end of their period."""

    ordering = "-ended_at"
    max_page_size = 720


@extend_schema(tags=["deployments"])
class SamplesView(ApiView):
    """Requests and latencies, period by period."""

    queryset = DeploymentSample.objects.none()
    pagination_class = LatestSampleFirst

    @extend_schema(
        operation_id="deployment_samples",
        summary="List what a deployment answered, period by period",
        responses=shapes.DeploymentSampleSerializer(many=True),
    )
    def get(self, request: Request, deployment_id: str) -> Response:
        found = deployment_get(self.user, deployment_id)
        return self.page(deployment_samples(found), shapes.DeploymentSampleSerializer)


@extend_schema(tags=["deployments"])
class ExpertsView(ApiView):
    """Experts of a deployment whose servers form a group."""

    queryset = Deployment.objects.none()

    @extend_schema(
        operation_id="deployment_experts",
        summary="Show the popularity, predictions and places of a deployment's experts",
        responses=DeploymentExpertsSerializer,
    )
    def get(self, request: Request, deployment_id: str) -> Response:
        found = deployment_get(self.user, deployment_id)
        return Response(DeploymentExpertsSerializer(deployment_experts(found)).data)


@extend_schema(tags=["deployments"])
class EventsView(ApiView):
    """History of a deployment."""

    queryset = DeploymentEvent.objects.none()

    @extend_schema(
        operation_id="deployment_events",
        summary="List what happened to a deployment",
        responses=shapes.DeploymentEventSerializer(many=True),
    )
    def get(self, request: Request, deployment_id: str) -> Response:
        found = deployment_get(self.user, deployment_id)
        return self.page(deployment_events(found), shapes.DeploymentEventSerializer)


@extend_schema(tags=["deployments"])
class LogsView(ApiView):
    """Logs of a deployment's replicas."""

    queryset = Replica.objects.none()

    @extend_schema(
        operation_id="deployment_logs",
        summary="Show the newest part of the logs of a deployment's newest replicas",
        responses=shapes.ReplicaLogsSerializer,
    )
    def get(self, request: Request, deployment_id: str) -> Response:
        found = deployment_get(self.user, deployment_id)
        rows = shapes.ReplicaLogSerializer(newest_replicas(found), many=True)
        return Response({"results": rows.data})
