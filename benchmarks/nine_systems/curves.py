"""Training speed of each kind of job on 1 to 32 GPUs, with all systems or without one of them.

Step times come from the planners and cost models that the platform plans with, and from the models of the
published evaluations (`research`). Servers have eight GPUs, NVLink inside, and links of
10 Gbps between them, 2.5 Gbps for the job behind a slow link. Batches grow with the GPUs, so work is counted
in batches of one GPU; the multi-task job has one batch that all GPUs share.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import replace
from enum import StrEnum
from functools import cache

import numpy as np

from communication.combined.choosing import choose
from communication.combined.plan import CandidatePlan
from communication.combined.question import PLANNERS, PlanQuestion
from communication.library.codecs import cpu_codec, gpu_codec
from communication.profiles.link import LinkProfile, LinkRate
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from communication.zen.densification import Densification
from communication.zen.profile import SparsityProfile
from moe.lina.calibration import CALIBRATED
from moe.lina.training_step import BASELINE, simulate_step
from moe.moesys.all_to_all import LinkRates
from moe.moesys.capacity import DeviceCapacity, TrainingDemands, fewest_gpus_without_tiers, fit
from moe.moesys.choices import Mode
from moe.moesys.elastic import plan_elastic
from moe.moesys.prefetch import LayerTimes, fetch_seconds, gather_seconds, two_channel_schedule
from moe.moesys.sizes import ModelShape
from research.adaptive_gating.model import EVALUATED
from research.espresso import model as espresso
from research.lina import model as lina
from research.moesys import model as moesys
from research.zen import model as zen
from simulation.workloads.workload import MeasuredThroughput

GPUS_PER_SERVER = 8
LEVELS = (1, 2, 4, 8, 16, 32)
WITHIN = LinkRate(espresso.LATENCY_SECONDS, espresso.WITHIN_BYTES_PER_SECOND[espresso.NVLINK])
LINKS = LinkProfile(LinkRate(espresso.LATENCY_SECONDS, 10e9 / 8), WITHIN)
SLOW_LINKS = LinkProfile(LinkRate(espresso.LATENCY_SECONDS, 2.5e9 / 8), WITHIN)
#: Lina's fitted model has no unit of time: an assumption that puts its steps beside those of other jobs.
LINA_UNIT_SECONDS = 0.01
#: The model in tiers: tokens of a GPU in a step, GPUs of 32 GB, servers with 512 GB and 4 TB.
TOKENS = 8192
TIERED = ModelShape(moesys.VOCABULARY, 2048, moesys.LAYERS, 64)
GPU_BYTES, ACTIVATION_BYTES = 32e9, 2e9
SERVER = DeviceCapacity(GPUS_PER_SERVER * GPU_BYTES, 512e9, 4e12, GPUS_PER_SERVER)
#: Rate of a disk. If a model fits, its active experts are all in host memory, so none is read from it.
FILE_BYTES_PER_SECOND = 3e9


class System(StrEnum):
    """Systems that may be switched off."""

    ELASTICFLOW = "ElasticFlow"
    LYRA = "Lyra"
    GEMINI = "Gemini"
    ZEN = "Zen"
    ESPRESSO = "Espresso"
    CUPCAKE = "Cupcake"
    LINA = "Lina"
    MOESYS = "MoESys"
    ADAPTIVE_GATING = "Adaptive gating"


#: Planners that need a system. A combined plan takes Espresso's options for Cupcake's groups.
_NEEDS = {
    "zen": {System.ZEN},
    "cupcake": {System.CUPCAKE},
    "espresso": {System.ESPRESSO},
    "combined": {System.CUPCAKE, System.ESPRESSO},
}


def shape_of(gpus: int) -> PlacementShape:
    """Return the placement of ``gpus`` GPUs on the fewest servers."""
    return PlacementShape(max(1, gpus // GPUS_PER_SERVER), min(gpus, GPUS_PER_SERVER))


# --- gradients ----------------------------------------------------------------------------------------------


@cache
def _best_by_planner(job: str, gpus: int, with_zen: bool) -> Mapping[str, CandidatePlan]:
    """Return the best plan of each planner."""
    question = _QUESTIONS[job](shape_of(gpus), PLANNERS if with_zen else _without_zen())
    choice = choose(question)
    return {each.planner: each for each in (choice.chosen, *choice.beaten)}


def _without_zen() -> tuple[str, ...]:
    return tuple(planner for planner in PLANNERS if planner != "zen")


def gradient_seconds(job: str, gpus: int, off: System | None) -> float:
    """Return an iteration under the best plan that the remaining systems make."""
    plans = _best_by_planner(job, gpus, off is not System.ZEN)
    return min(
        plan.predicted.iteration_seconds
        for planner, plan in plans.items()
        if off not in _NEEDS.get(planner, set())
    )


def _published(
    name: str, codec: str | None, links: LinkProfile
) -> Callable[[PlacementShape, tuple[str, ...]], PlanQuestion]:
    """Return the question of a model whose tensors were measured for Espresso."""
    workload = espresso.WORKLOADS[name]

    def question(shape: PlacementShape, planners: tuple[str, ...]) -> PlanQuestion:
        codecs = () if codec is None else (gpu_codec(codec), cpu_codec(codec, 1e9 * workload.cpu_gbps))
        return PlanQuestion(
            name, espresso.model_of(workload), shape, links, codecs=codecs, lossy=codec is not None,
            planners=planners,
        )  # fmt: skip

    return question


def _embedding(shape: PlacementShape, planners: tuple[str, ...]) -> PlanQuestion:
    """Return the question of Zen's LSTM: a table whose gradient is mostly zeros, and layers beside it."""
    model, seconds = zen.LSTM, zen.compute_seconds(zen.LSTM.name, zen.V100)
    elements = np.array([int(model.mlp), int(model.embedding)])
    # As in any step, the backward pass takes two thirds.
    gaps = np.array([seconds / 3, seconds / 3])
    profile = ModelProfile(model.name, ("layers", "table"), elements, gaps, seconds / 3)
    law = Densification(model.density, zen.fitted_beta(model.name))
    sparse = SparsityProfile("table", int(model.embedding), 1, law, zen.SKEW)
    return PlanQuestion(model.name, profile, shape, LINKS, sparse=(sparse,), planners=planners)


_QUESTIONS: Mapping[str, Callable[[PlacementShape, tuple[str, ...]], PlanQuestion]] = {
    "dense": _published("ResNet101", None, LINKS),
    "slow link": _published("VGG16", "random-k", SLOW_LINKS),
    "sparse": _embedding,
}


# --- experts ------------------------------------------------------------------------------------------------


@cache
def experts_seconds(gpus: int, has_lina: bool) -> float:
    """Return a step of the mixture of experts that Lina's model is fitted to, with an expert on each GPU."""
    if gpus == 1:
        alone = replace(CALIBRATED, gradients=0.0)
        return LINA_UNIT_SECONDS * simulate_step(alone, 1, BASELINE).total
    steps = [lina.baseline(gpus).total]
    if has_lina:
        steps.append(lina.step(lina.LINA, gpus).total)
    return LINA_UNIT_SECONDS * min(steps)


def adaptive_seconds(gpus: int, off: System | None) -> float:
    """Return the same with the two-expert share and the experts' share of "text completion"."""
    task = EVALUATED["text completion"]
    share = 1.0 if off is System.ADAPTIVE_GATING else task.share
    return experts_seconds(gpus, off is not System.LINA) * task.step_time(share)


@cache
def fewest_gpus(has_tiers: bool) -> int:
    """Return the fewest GPUs of the levels that hold the model in tiers."""
    if has_tiers:
        devices = fit(TIERED.sizes, SERVER, TrainingDemands(activation_bytes=ACTIVATION_BYTES)).devices
        found = None if devices is None else devices * GPUS_PER_SERVER
    else:
        found = fewest_gpus_without_tiers(TIERED.sizes, GPU_BYTES, ACTIVATION_BYTES, LEVELS[-1])
    if found is None:
        raise ValueError("no number of GPUs holds the model")
    return min(level for level in LEVELS if level >= found)


@cache
def tiers_seconds(gpus: int, has_tiers: bool) -> float:
    """Return a step of a model in tiers: computation, gathers of dense slices and fetches of experts."""
    sizes, rates = TIERED.sizes, LinkRates()
    computing = 1e-6 * moesys.laws()["MoESys"].computing * TOKENS / TIERED.layers
    between = LINKS.granted.bytes_per_second if gpus > GPUS_PER_SERVER else rates.within
    gather = gather_seconds(sizes.dense / TIERED.layers, gpus, between) if has_tiers else 0.0
    hosted = -(-TIERED.experts // gpus)
    fetch = (
        fetch_seconds(hosted, 0, sizes.expert_parameters, moesys.HOST, FILE_BYTES_PER_SECOND)
        if has_tiers
        else 0.0
    )
    # Forward, and twice as long backward.
    layers = TIERED.layers
    passes = [
        LayerTimes(np.full(layers, share * computing), np.full(layers, gather), np.full(layers, fetch))
        for share in (1 / 3, 2 / 3)
    ]
    return two_channel_schedule(passes[0].followed_by(passes[1])).seconds


def tasks_seconds(gpus: int, is_elastic: bool) -> float | None:
    """Return a step of the tasks of MoESys' Table 3; None if every task needs GPUs of its own and there are
    too few."""
    cost = moesys.step_cost()
    if is_elastic:
        return cost.seconds(plan_elastic(moesys.TASKS, Mode.BUDGET, gpus).largest_load)
    each = gpus // len(moesys.TASKS)
    return cost.seconds(max(-(-task.batch // each) for task in moesys.TASKS)) if each else None


# --- all ----------------------------------------------------------------------------------------------------

KINDS = (*_QUESTIONS, "experts", "tiers", "tasks", "adaptive")


def curve(kind: str, off: System | None) -> MeasuredThroughput:
    """Return the throughput of a kind of job by GPUs, without one system if asked."""
    rates = {gpus: rate for gpus in LEVELS if (rate := _rate(kind, gpus, off)) is not None}
    return MeasuredThroughput(np.array(list(rates)), np.array(list(rates.values())))


def _rate(kind: str, gpus: int, off: System | None) -> float | None:
    """Return the iterations per second; None if the job does not run on so many GPUs."""
    if kind in _QUESTIONS:
        return gpus / gradient_seconds(kind, gpus, off)
    if kind == "tasks":
        seconds = tasks_seconds(gpus, off is not System.MOESYS)
        return None if seconds is None else 1.0 / seconds
    if kind == "tiers":
        has_tiers = off is not System.MOESYS
        return None if gpus < fewest_gpus(has_tiers) else gpus / tiers_seconds(gpus, has_tiers)
    if gpus > max(lina.SIZES):
        return None  # an expert on each GPU
    if kind == "experts":
        return gpus / experts_seconds(gpus, off is not System.LINA)
    return gpus / adaptive_seconds(gpus, off)
