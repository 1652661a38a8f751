"""Letting agents in: where a server is at home is said by the token that it enrols with."""

from __future__ import annotations

from typing import Any

from drf_spectacular.utils import extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from cluster.api import serializers as cluster_shapes
from lending.models import InferenceCluster
from lending.selectors.inference_clusters import inference_cluster_get
from lending.services.inference_clusters import server_token_create
from projects.access import require_operator
from projects.api.base import ApiView
from projects.errors import InvalidRequest, NotFound
from projects.models import Scope
from scheduling.services.agents.enrolment import TOKEN_VALID_FOR, enrolment_token_create


@extend_schema(tags=["cluster"])
class EnrolmentTokensView(ApiView):
    """Letting agents in."""

    token_scopes = {"POST": Scope.OPERATE}
    remembers_answers = False

    @extend_schema(
        operation_id="enrolment_token_create",
        summary="Create an enrolment token (operator)",
        description="One agent may enrol once with it. No other answer contains the token.",
        request=cluster_shapes.EnrolmentTokenRequestSerializer,
        responses={201: cluster_shapes.EnrolmentTokenSerializer},
    )
    def post(self, request: Request) -> Response:
        require_operator(self.user)
        body = self.read(cluster_shapes.EnrolmentTokenRequestSerializer)
        name = body["inference_cluster"]
        asked: dict[str, Any] = {"created_by": self.user, "server_name": body["server_name"]}
        token = (
            server_token_create(inference_cluster=_inference_cluster_named(name), **asked)
            if name
            else enrolment_token_create(**asked)
        )
        answer = {**body, "token": token, "valid_seconds": int(TOKEN_VALID_FOR.total_seconds())}
        return Response(cluster_shapes.EnrolmentTokenSerializer(answer).data, status=201)


def _inference_cluster_named(name: str) -> InferenceCluster:
    try:
        return inference_cluster_get(name)
    except NotFound as error:
        raise InvalidRequest(error.detail, errors={"inference_cluster": [error.detail]}) from error
