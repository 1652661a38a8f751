"""Creating, changing and ending deployments."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework import serializers
from rest_framework.request import Request
from rest_framework.response import Response

from deployments.api import requests
from deployments.api.serializers import DeploymentSerializer
from deployments.choices import DeploymentState
from deployments.models import Deployment
from deployments.selectors.deployments import (
    deployment_get,
    deployment_to_change,
    deployments_matching,
    deployments_visible_to,
)
from deployments.services.deployments import (
    deployment_change,
    deployment_create,
    deployment_delete,
    deployment_drain,
    deployment_rollback,
)
from projects.api.base import ApiView, StrictSerializer
from projects.api.filters import read_filters
from projects.api.pagination import NewestFirstCursorPagination
from projects.models import Scope


class LatestCreatedFirst(NewestFirstCursorPagination):
    """Deployments by the time of their creation."""

    ordering = ("-created_at", "-id")


class DeploymentFilterSerializer(StrictSerializer):
    """Filters of the list; all must hold."""

    project = serializers.CharField(max_length=64, required=False)
    name = serializers.CharField(max_length=200, required=False, help_text="The exact name.")
    job = serializers.CharField(max_length=16, required=False)
    state = serializers.ListField(
        child=serializers.ChoiceField(DeploymentState.choices),
        required=False,
        help_text="Any of these values; repeatable.",
    )


class DeploymentAnswerView(ApiView):
    """Base of views that answer with a deployment."""

    queryset = Deployment.objects.none()
    pagination_class = LatestCreatedFirst

    def answer(self, deployment_id: str, status: int = 200) -> Response:
        """Return the deployment as it is now."""
        found = deployment_get(self.user, deployment_id)
        return Response(DeploymentSerializer(found).data, status=status)


@extend_schema(tags=["deployments"])
class DeploymentsView(DeploymentAnswerView):
    """The caller's deployments."""

    token_scopes = {"POST": Scope.SUBMIT}
    throttle_scopes = {"POST": "submissions"}

    @extend_schema(
        operation_id="deployment_list",
        summary="List deployments",
        parameters=[DeploymentFilterSerializer],
        responses=DeploymentSerializer(many=True),
    )
    def get(self, request: Request) -> Response:
        filters = read_filters(request, DeploymentFilterSerializer)
        found = deployments_matching(deployments_visible_to(self.user), filters)
        return self.page(found, DeploymentSerializer)

    @extend_schema(
        operation_id="deployment_create",
        summary="Deploy a completed job or a function",
        description=(
            "Its model answers `predict/` on servers of an inference cluster. The class must define "
            "`predict(self, batch, model)`. The number of servers follows the load within `servers.min` and "
            "`servers.max`."
        ),
        request=requests.DeploymentRequestSerializer,
        responses={201: DeploymentSerializer},
    )
    def post(self, request: Request) -> Response:
        return self.idempotently(self._create)

    def _create(self) -> Response:
        body = self.read(requests.DeploymentRequestSerializer)
        project, served, asked = requests.read_creation(self.user, body)
        made = deployment_create(project=project, owner=self.user, served=served, request=asked)
        return self.answer(made.pk, 201)


@extend_schema(tags=["deployments"])
class DeploymentView(DeploymentAnswerView):
    """One deployment."""

    token_scopes = {"PATCH": Scope.SUBMIT, "DELETE": Scope.SUBMIT}

    @extend_schema(operation_id="deployment", summary="Show a deployment", responses=DeploymentSerializer)
    def get(self, request: Request, deployment_id: str) -> Response:
        return self.answer(deployment_id)

    @extend_schema(
        operation_id="deployment_change",
        summary="Change bounds, targets, batches or the model of a deployment",
        description=(
            "Another model takes over one server at a time: a new replica serves before an old one drains. "
            "409 if the deployment drains or has stopped."
        ),
        request=requests.DeploymentPatchSerializer,
        responses=DeploymentSerializer,
    )
    def patch(self, request: Request, deployment_id: str) -> Response:
        found = deployment_to_change(self.user, deployment_id)
        body = self.read(requests.DeploymentPatchSerializer)
        changes, served = requests.read_change(self.user, found, body)
        deployment_change(deployment=found, actor=self.user, changes=changes, served=served)
        return self.answer(deployment_id)

    @extend_schema(
        operation_id="deployment_delete",
        summary="Delete a deployment",
        description=(
            "Its servers answer until no more requests arrive, and then end. The request may be repeated."
        ),
        responses={202: DeploymentSerializer},
    )
    def delete(self, request: Request, deployment_id: str) -> Response:
        found = deployment_to_change(self.user, deployment_id)
        deployment_delete(deployment=found, actor=self.user)
        return self.answer(deployment_id, 202)


@extend_schema(tags=["deployments"])
class RollbackView(DeploymentAnswerView):
    """Back to the model before."""

    token_scopes = {"POST": Scope.SUBMIT}

    @extend_schema(
        operation_id="deployment_rollback",
        summary="Serve again what the previous generation served",
        description="409 if no earlier generation served.",
        request=None,
        responses=DeploymentSerializer,
    )
    def post(self, request: Request, deployment_id: str) -> Response:
        found = deployment_to_change(self.user, deployment_id)
        return self.idempotently(lambda: self._roll_back(found))

    def _roll_back(self, found: Deployment) -> Response:
        deployment_rollback(deployment=found, actor=self.user)
        return self.answer(found.pk)


@extend_schema(tags=["deployments"])
class DrainView(DeploymentAnswerView):
    """Draining one server of a deployment."""

    token_scopes = {"POST": Scope.SUBMIT}

    @extend_schema(
        operation_id="deployment_drain",
        summary="Drain one server after another one has taken its place",
        request=requests.DeploymentDrainSerializer,
        responses=DeploymentSerializer,
    )
    def post(self, request: Request, deployment_id: str) -> Response:
        found = deployment_to_change(self.user, deployment_id)
        return self.idempotently(lambda: self._drain(found))

    def _drain(self, found: Deployment) -> Response:
        name = self.read(requests.DeploymentDrainSerializer)["server"]
        deployment_drain(deployment=found, actor=self.user, server_name=name)
        return self.answer(found.pk)
