"""Questions to the planners of mixtures of experts. They change nothing.

Imports are local to the views: they load numpy, which nothing else in this process needs.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from projects.api.base import ApiView, StrictSerializer
from projects.errors import InvalidRequest
from projects.models import Scope
from scheduling.api import moe_requests as requests
from scheduling.api import moe_serializers as shapes


class PlannerView(ApiView):
    """Base of these views."""

    token_scopes = {"POST": Scope.READ}
    throttle_scopes = {"POST": "what_if"}
    remembers_answers = False


@contextmanager
def field_errors(serializer_class: type[StrictSerializer], default: str) -> Iterator[None]:
    """Turn a planner's ValueError into a 400. Most of their messages begin with a field's name.

    Args:
        default: field of messages that do not.
    """
    try:
        yield
    except ValueError as error:
        message = str(error)
        first_word = message.split(" ", 1)[0]
        field = first_word if first_word in serializer_class().fields else default
        raise InvalidRequest(f"{message[0].upper()}{message[1:]}.", errors={field: [message]}) from error


FIT_EXAMPLE = OpenApiExample(
    "207 billion parameters on servers of eight A100",
    request_only=True,
    value={
        "vocabulary": 50304, "hidden": 4096, "layers": 12, "experts": 128, "alpha": 0.25,
        "device": {"gpu_bytes": 640e9, "cpu_bytes": 1e12, "ssd_bytes": 8e12, "gpus": 8},
    },
)  # fmt: skip


@extend_schema(tags=["mixtures of experts"])
class FitView(PlannerView):
    """The fewest servers that hold a model."""

    @extend_schema(
        operation_id="moe_fit",
        summary="Compute the fewest servers that hold a model with experts, and what binds",
        description="Counts device memory, host memory and disk (MoESys, equation 1).",
        request=requests.FitRequestSerializer,
        responses={200: shapes.FitSerializer},
        examples=[FIT_EXAMPLE],
    )
    def post(self, request: Request) -> Response:
        from scheduling.services.requests.moe_answers import fit_answer

        body = self.read(requests.FitRequestSerializer)
        with field_errors(requests.FitRequestSerializer, "tiers"):
            answer = fit_answer(body)
        return Response(shapes.FitSerializer(answer).data)


@extend_schema(tags=["mixtures of experts"])
class ElasticView(PlannerView):
    """GPUs for tasks of unequal load."""

    @extend_schema(
        operation_id="moe_elastic",
        summary="Plan GPUs for tasks of unequal load",
        request=requests.ElasticRequestSerializer,
        responses={200: shapes.ElasticSerializer},
    )
    def post(self, request: Request) -> Response:
        from scheduling.services.requests.moe_answers import elastic_answer

        body = self.read(requests.ElasticRequestSerializer)
        with field_errors(requests.ElasticRequestSerializer, "memory" if "memory" in body else "tasks"):
            answer = elastic_answer(body)
        return Response(shapes.ElasticSerializer(answer).data)


@extend_schema(tags=["mixtures of experts"])
class PlacementView(PlannerView):
    """Servers ranked by predicted all-to-alls."""

    pagination_class = None

    @extend_schema(
        operation_id="moe_placement",
        summary="Rank servers for a gang by the predicted time of its all-to-alls",
        description="Without `servers`: those of this cluster, with the GPUs that are free now. Best first; "
        "empty if too few are free.",
        request=requests.PlacementRequestSerializer,
        responses={200: shapes.PlacementSerializer(many=True)},
    )
    def post(self, request: Request) -> Response:
        from scheduling.services.requests.moe_answers import placement_answers

        body = self.read(requests.PlacementRequestSerializer)
        answers = placement_answers(body, requests.MAX_SERVERS)
        return Response(shapes.PlacementSerializer(answers, many=True).data)


@extend_schema(tags=["mixtures of experts"])
class RingView(PlannerView):
    """Inference in a ring of device memory."""

    @extend_schema(
        operation_id="moe_ring",
        summary="Predict inference with experts in a ring of device memory",
        request=requests.RingRequestSerializer,
        responses={200: shapes.RingSerializer},
    )
    def post(self, request: Request) -> Response:
        from scheduling.services.requests.moe_answers import ring_answer

        body = self.read(requests.RingRequestSerializer)
        return Response(shapes.RingSerializer(ring_answer(body)).data)
