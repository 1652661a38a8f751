"""Questions to the planners of mixtures of experts. They change nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from drf_spectacular.utils import OpenApiExample, extend_schema
from rest_framework.request import Request
from rest_framework.response import Response

from moe.moesys.all_to_all import LinkRates
from moe.moesys.capacity import DeviceCapacity, Tier, TrainingDemands, fewest_gpus_without_tiers, fit
from moe.moesys.elastic import MAX_GPUS, Mode, plan_elastic
from moe.moesys.gangs import StepCost, choose_gang, predict_gang, useful_gangs
from moe.moesys.placement_score import FreeServer, ScoredPlacement, StepTraffic, rank_placements
from moe.moesys.ring_admission import Pinning, RingRequest, admit_ring
from moe.moesys.sizes import ModelShape, ModelSizes
from moe.moesys.tasks import ElasticPlan, RankMemory, Task
from projects.api.base import ApiView, StrictSerializer
from projects.errors import InvalidRequest
from projects.models import Scope
from scheduling.api import moe_requests as requests
from scheduling.api import moe_serializers as shapes
from scheduling.selectors.free_servers import find_free_servers


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
        body = self.read(requests.FitRequestSerializer)
        sizes = _read_sizes(body)
        device = DeviceCapacity(**body["device"])
        demands = TrainingDemands(
            alpha=body["alpha"],
            lookahead=body["lookahead"],
            activation_bytes=body["activation_bytes"],
            strict_paper=body["strict_paper"],
        )
        with field_errors(requests.FitRequestSerializer, "tiers"):
            found = fit(sizes, device, demands, frozenset(map(Tier, body["tiers"])))
        gpu_bytes = device.gpu_bytes / device.gpus
        answer = {
            "n_min": found.devices,
            "binding": found.binding,
            "by_tier": found.by_tier,
            "bytes": found.needed_bytes,
            "fullest_bytes": found.fullest_bytes,
            "gpus_without_tiers": fewest_gpus_without_tiers(
                sizes, gpu_bytes, body["activation_bytes"], MAX_GPUS
            ),
            "dense": sizes.dense,
            "sparse": sizes.sparse,
        }
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
        body = self.read(requests.ElasticRequestSerializer)
        tasks = [Task(**task) for task in body["tasks"]]
        memory = RankMemory(**body["memory"]) if "memory" in body else None
        cost = StepCost(**body["step_cost"]) if "step_cost" in body else None
        with field_errors(requests.ElasticRequestSerializer, "memory" if memory else "tasks"):
            if body["mode"] == requests.DEADLINE_MODE:
                answer = _plan_for_deadline(body, tasks, StepCost(**body["step_cost"]), memory)
            else:
                plan = plan_elastic(tasks, Mode(body["mode"]), body.get("gpus"), body.get("quota"), memory)
                answer = _plan_answer(plan, cost, None)
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
        body = self.read(requests.PlacementRequestSerializer)
        traffic = StepTraffic(
            **{
                name: body[name]
                for name in ("layers", "tokens_per_rank", "experts_per_token", "hidden", "dense")
            }
        )
        rates = LinkRates(**body.get("rates", {}))
        servers = _read_servers(body)[: requests.MAX_SERVERS]
        ranked = rank_placements(servers, body["gpus"], traffic, rates, body["most"])
        answers = [_placement_answer(placement) for placement in ranked]
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
        body = self.read(requests.RingRequestSerializer)
        sections = body.pop("sections", None)
        verdict = admit_ring(RingRequest(**{**body, "pinning": Pinning(body["pinning"])}), sections)
        answer = {
            "K": verdict.sections,
            "bytes": verdict.bytes,
            "first_pass": verdict.first_pass_seconds,
            "steady": verdict.steady_seconds,
            "k_min": verdict.fewest_sections,
            "pinned": verdict.pinned,
            "is_resident": verdict.is_resident,
            "is_admitted": verdict.is_admitted,
            "binding": verdict.binding,
            "remedy": verdict.remedy,
            "remedy_gpus": verdict.remedy_gpus,
            "is_load_bound": verdict.is_load_bound,
        }
        return Response(shapes.RingSerializer(answer).data)


def _read_sizes(body: dict[str, Any]) -> ModelSizes:
    if "hidden" in body:
        names = ("vocabulary", "hidden", "layers", "experts", "expansion")
        return ModelShape(**{name: body[name] for name in names}).sizes
    return ModelSizes(body["dense"], body["sparse"], body["layers"], body["experts"])


def _read_servers(body: dict[str, Any]) -> list[FreeServer]:
    if "servers" in body:
        return [FreeServer(**server) for server in body["servers"]]
    return find_free_servers(body.get("gpu_kind"))


def _plan_for_deadline(
    body: dict[str, Any], tasks: list[Task], cost: StepCost, memory: RankMemory | None
) -> dict[str, Any]:
    """Return the smallest gang that meets the deadline; if none does, the fastest one."""
    gang = choose_gang(
        tasks,
        cost,
        body["gpus"],
        steps=body["steps"],
        deadline_seconds=body["deadline_seconds"],
        memory=memory,
    )
    chosen = gang or useful_gangs(tasks, cost, body["gpus"], memory)[-1]
    return _plan_answer(chosen.plan, cost, gang is not None)


def _plan_answer(plan: ElasticPlan, cost: StepCost | None, meets_deadline: bool | None) -> dict[str, Any]:
    gang = predict_gang(plan, cost) if cost is not None else None
    return {
        "q": plan.quota,
        "gpus": plan.gpus,
        "groups": [
            {"task": group.task, "ranks": group.ranks, "batch": group.samples} for group in plan.groups
        ],
        "util": plan.utilisation,
        "loads": plan.loads,
        "bubbles": plan.bubbles,
        "step_seconds": gang and gang.step_seconds,
        "samples_per_second": gang and gang.samples_per_second,
        "meets_deadline": meets_deadline,
    }


def _placement_answer(placement: ScoredPlacement) -> dict[str, Any]:
    return {
        "nodes": placement.servers,
        "gpus": placement.gpus,
        "flat": placement.flat_seconds,
        "hier": placement.hierarchical_seconds,
        "algo": placement.algorithm,
        "score": placement.score,
    }
