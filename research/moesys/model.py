"""The published evaluation in numbers: models, links, and what is fitted since it is not published."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

import numpy as np

from moe.moesys.all_to_all import AllToAll, LinkRates, flat_seconds, hierarchical_seconds
from moe.moesys.capacity import STATE_BYTES
from moe.moesys.embedding import TableTraffic
from moe.moesys.gangs import StepCost, fit_step_cost
from moe.moesys.ring import RingMemory
from moe.moesys.sizes import ModelShape
from moe.moesys.tasks import Task
from research.moesys.published import TABLE_2, TABLE_3, TABLE_4, TABLE_6

VOCABULARY, HIDDEN, LAYERS = 50304, 4096, 12
#: Assumed: the sequence length is not published.
SEQUENCE = 1024
GB = 1e9
#: GPUs of a server.
GPUS = 8
SERVERS = 4
#: Bytes of a parameter on a GPU, and GB beside them: fitted to the rows of 16 to 128 GPUs of Table 2.
GPU_MEMORY = {"MoESys": (STATE_BYTES, 12.4), "DeepSpeed": (20, 13.9)}
#: Communication gains 15.5 % and a step 10.3 % on four servers, read as time.
COMMUNICATION_CUT, STEP_CUT = 0.155, 0.103
#: Spine over leaf, or oversubscription of uplinks: rounded from what both readings of 15.5 % need.
SPINE, OVERSUBSCRIPTION = 0.75, 1.5
#: Bytes that an update moves for each parameter of a table, and bytes per second of a GPU's memory.
UPDATE_BYTES, DEVICE_MEMORY = 28, 1.5e12
UFO = tuple(Task(batch) for batch in (1152, 576, 576, 576, 1152, *[144] * 18, 256))
TASKS = (Task(512), Task(256), Task(128), Task(128))
#: A stand-in for the 58.2 billion parameters of the ring's test.
RING_SHAPE = ModelShape(VOCABULARY, 3072, 24, 32)
RING_GPUS, RING_ACTIVATIONS = 16, 2 * GB
#: Of a GPU's link to host memory.
HOST = 25 * GB


def shape(experts: int) -> ModelShape:
    """Return a model of Table 2."""
    return ModelShape(VOCABULARY, HIDDEN, LAYERS, experts)


def gpu_gigabytes(system: str, experts: int) -> float:
    """Return the memory of a GPU with as many GPUs as experts, and no tier."""
    parameter_bytes, others = GPU_MEMORY[system]
    sizes = shape(experts).sizes
    return parameter_bytes * (sizes.dense + sizes.sparse / experts) / GB + others


@dataclass(frozen=True, slots=True)
class ThroughputLaw:
    """Time of a token on one of R GPUs: t0 + φ · (x + y · n) microseconds.

    n = R / 8 servers; φ = (R - 8) / R is the part of an all-to-all that leaves its server.

    Attributes:
        computing: t0.
        leaving: x, for what leaves a server.
        straggling: y, for each server.
    """

    computing: float
    leaving: float
    straggling: float

    def tokens_per_second(self, gpus: int) -> float:
        """Return the throughput of all GPUs together."""
        outside = (gpus - GPUS) / gpus
        return gpus * 1e6 / (self.computing + outside * (self.leaving + self.straggling * gpus / GPUS))


@cache
def laws() -> dict[str, ThroughputLaw]:
    """Return the laws of both systems: five constants for the ten throughputs of Table 2."""
    return _fit_laws(
        {
            "DeepSpeed": {gpus: row[1] for gpus, row in TABLE_2.items()},
            "MoESys": {gpus: row[2] for gpus, row in TABLE_2.items()},
        }
    )


def _fit_laws(measured: Mapping[str, Mapping[int, float]]) -> dict[str, ThroughputLaw]:
    """Fit laws that share the cost of a server, by least squares of relative residuals."""
    rows = []
    for index, rates in enumerate(measured.values()):
        for gpus, rate in rates.items():
            outside = (gpus - GPUS) / gpus
            row = np.zeros(2 * len(measured) + 1)
            row[2 * index], row[2 * index + 1], row[-1] = 1.0, outside, outside * gpus / GPUS
            rows.append(row / (gpus * 1e6 / rate))
    found = np.linalg.lstsq(np.array(rows), np.ones(len(rows)), rcond=None)[0].tolist()
    return {
        name: ThroughputLaw(found[2 * index], found[2 * index + 1], found[-1])
        for index, name in enumerate(measured)
    }


def step_cost() -> StepCost:
    """Return seconds by largest load, through both values of Table 3."""
    return fit_step_cost({512.0: 1024 / TABLE_3[4], 128.0: 1024 / TABLE_3[8]})


def spine_rates(ratio: float) -> LinkRates:
    """Return links without latency whose spine has this share of a leaf's rate."""
    return LinkRates(spine=25 * GB * ratio, within_latency=0.0, between_latency=0.0)


def exchange_gain(servers: int, rates: LinkRates, pair_bytes: float = 1e6) -> float:
    """Return the time of a flat all-to-all over that of a hierarchical one."""
    exchange = AllToAll(servers, GPUS, pair_bytes)
    return flat_seconds(exchange, rates) / hierarchical_seconds(exchange, rates)


@cache
def spine_with_gain(gain: float) -> float:
    """Return the spine over leaf at which four servers have this gain, by bisection."""
    low, high = 0.2, 1.5
    for _ in range(50):
        middle = (low + high) / 2
        low, high = (middle, high) if exchange_gain(SERVERS, spine_rates(middle)) > gain else (low, middle)
    return (low + high) / 2


def communication_share() -> float:
    """Return the share of communication in a flat step by which both published cuts agree."""
    return STEP_CUT / COMMUNICATION_CUT


def embedding_speed(experts: int, hidden: int) -> float:
    """Return the speed with a partitioned table over a replicated one.

    The published step of the replicated one gets shorter by what is sent and updated less.
    """
    step = GPUS * SEQUENCE / TABLE_4[experts, hidden][2]
    traffic = TableTraffic(VOCABULARY, hidden, GPUS, SEQUENCE, element_bytes=2)
    sent = (traffic.replicated_bytes - traffic.partitioned_bytes) / LinkRates().within
    updated = UPDATE_BYTES * VOCABULARY * hidden * (1.0 - 1.0 / GPUS) / DEVICE_MEMORY
    return step / (step - sent - updated)


def embedding_memory(experts: int, hidden: int) -> float:
    """Return the memory with a partitioned table over a replicated one."""
    gigabytes = TABLE_4[experts, hidden][0]
    saved = TableTraffic(VOCABULARY, hidden, GPUS, SEQUENCE).saved_memory_bytes / GB
    return (gigabytes - saved) / gigabytes


def inference_factors() -> tuple[float, float, float]:
    """Return the factors of kernels, inside a server and across servers: one for each row of Table 6."""
    ratios = [moesys / deep_speed for deep_speed, moesys in TABLE_6.values()]
    return ratios[0], ratios[1] / ratios[0], ratios[2] / ratios[1]


def ring_memory(sections: int) -> RingMemory:
    """Return the memory of the stand-in's ring on one GPU."""
    sizes = RING_SHAPE.sizes
    layer = 2.0 * sizes.expert_parameters * RING_SHAPE.experts / RING_GPUS
    return RingMemory(RING_SHAPE.layers, sections, layer, 2.0 * sizes.dense, RING_ACTIVATIONS)
