"""Answers of the planners of mixtures of experts to checked questions. They change nothing.

A separate module because it loads numpy, which the views need not.
"""

from __future__ import annotations

from typing import Any

from moe.moesys.all_to_all import LinkRates
from moe.moesys.capacity import DeviceCapacity, TrainingDemands, fewest_gpus_without_tiers, fit
from moe.moesys.choices import MAX_GPUS, Mode, Pinning, Tier
from moe.moesys.elastic import plan_elastic
from moe.moesys.gangs import StepCost, choose_gang, predict_gang, useful_gangs
from moe.moesys.placement_score import FreeServer, ScoredPlacement, StepTraffic, rank_placements
from moe.moesys.ring_admission import RingRequest, admit_ring
from moe.moesys.sizes import ModelShape, ModelSizes
from moe.moesys.tasks import ElasticPlan, RankMemory, Task
from scheduling.selectors.cluster.free_servers import find_free_servers

#: Mode that chooses the smallest gang that meets a deadline, in addition to the planner's own modes.
DEADLINE_MODE = "deadline"


def fit_answer(body: dict[str, Any]) -> dict[str, Any]:
    """Return the fewest servers that hold a model. Raise ValueError if the question has no answer."""
    sizes = _read_sizes(body)
    device = DeviceCapacity(**body["device"])
    demands = TrainingDemands(
        alpha=body["alpha"],
        lookahead=body["lookahead"],
        activation_bytes=body["activation_bytes"],
        strict_paper=body["strict_paper"],
    )
    found = fit(sizes, device, demands, frozenset(map(Tier, body["tiers"])))
    gpu_bytes = device.gpu_bytes / device.gpus
    return {
        "n_min": found.devices,
        "binding": found.binding,
        "by_tier": found.by_tier,
        "bytes": found.needed_bytes,
        "fullest_bytes": found.fullest_bytes,
        "gpus_without_tiers": fewest_gpus_without_tiers(sizes, gpu_bytes, body["activation_bytes"], MAX_GPUS),
        "dense": sizes.dense,
        "sparse": sizes.sparse,
    }


def elastic_answer(body: dict[str, Any]) -> dict[str, Any]:
    """Return GPUs for tasks of unequal load. Raise ValueError if the question has no answer."""
    tasks = [Task(**task) for task in body["tasks"]]
    memory = RankMemory(**body["memory"]) if "memory" in body else None
    if body["mode"] == DEADLINE_MODE:
        return _plan_for_deadline(body, tasks, StepCost(**body["step_cost"]), memory)
    cost = StepCost(**body["step_cost"]) if "step_cost" in body else None
    plan = plan_elastic(tasks, Mode(body["mode"]), body.get("gpus"), body.get("quota"), memory)
    return _plan_answer(plan, cost, None)


def placement_answers(body: dict[str, Any], most_servers: int) -> list[dict[str, Any]]:
    """Return servers ranked by predicted all-to-alls, the best first."""
    names = ("layers", "tokens_per_rank", "experts_per_token", "hidden", "dense")
    traffic = StepTraffic(**{name: body[name] for name in names})
    rates = LinkRates(**body.get("rates", {}))
    ranked = rank_placements(_read_servers(body)[:most_servers], body["gpus"], traffic, rates, body["most"])
    return [_placement_answer(placement) for placement in ranked]


def ring_answer(body: dict[str, Any]) -> dict[str, Any]:
    """Return the verdict on inference in a ring of device memory."""
    given = {name: value for name, value in body.items() if name != "sections"}
    question = RingRequest(**{**given, "pinning": Pinning(body["pinning"])})
    verdict = admit_ring(question, body.get("sections"))
    return {
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
