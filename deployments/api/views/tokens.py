"""Tokens that open the replicas of a deployment."""

from __future__ import annotations

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from deployments.api import serializers as shapes
from deployments.api.requests import DeploymentTokenRequestSerializer
from deployments.models import DeploymentToken
from deployments.selectors.deployments import deployment_to_change, deployment_token_get, deployment_tokens
from deployments.services.tokens import deployment_token_issue, deployment_token_revoke
from projects.api.base import ApiView
from projects.models import Scope


@extend_schema(tags=["deployments"])
class TokensView(ApiView):
    """Tokens of one deployment."""

    queryset = DeploymentToken.objects.none()
    token_scopes = {"POST": Scope.SUBMIT}
    remembers_answers = False

    @extend_schema(
        operation_id="deployment_token_list",
        summary="List the tokens of a deployment",
        responses=shapes.DeploymentTokenSerializer(many=True),
    )
    def get(self, request: Request, deployment_id: str) -> Response:
        found = deployment_to_change(self.user, deployment_id)
        return self.page(deployment_tokens(found), shapes.DeploymentTokenSerializer)

    @extend_schema(
        operation_id="deployment_token_issue",
        summary="Issue a token that opens the servers of a deployment",
        description="Only this answer contains the token. It opens these servers and nothing else.",
        request=DeploymentTokenRequestSerializer,
        responses={201: shapes.FreshDeploymentTokenSerializer},
    )
    def post(self, request: Request, deployment_id: str) -> Response:
        found = deployment_to_change(self.user, deployment_id)
        name = self.read(DeploymentTokenRequestSerializer)["name"]
        row, token = deployment_token_issue(deployment=found, actor=self.user, name=name)
        return Response({**shapes.DeploymentTokenSerializer(row).data, "token": token}, status=201)


@extend_schema(tags=["deployments"])
class TokenView(ApiView):
    """One token."""

    queryset = DeploymentToken.objects.none()
    token_scopes = {"DELETE": Scope.SUBMIT}

    @extend_schema(
        operation_id="deployment_token_revoke",
        summary="Revoke a token of a deployment",
        responses={204: None},
    )
    def delete(self, request: Request, deployment_id: str, token_id: int) -> Response:
        found = deployment_to_change(self.user, deployment_id)
        deployment_token_revoke(token=deployment_token_get(found, token_id), actor=self.user)
        return Response(status=204)
