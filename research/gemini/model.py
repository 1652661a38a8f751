"""The published evaluation in numbers: clusters, models, and the times that were measured there (4.1)."""

from __future__ import annotations

from dataclasses import dataclass

from recovery.costs.failures import FailureCost
from recovery.costs.wasted_time import Checkpointing, in_memory, iterations_between
from recovery.traffic.link import Link, SubBuffers
from recovery.traffic.partition import partition
from recovery.traffic.transmission import transmit

GIGABYTE = 1e9
DEFAULT_BUFFERS = SubBuffers()
MINUTE_SECONDS = 60.0
GPUS_PER_MACHINE = 8
BYTES_PER_PARAMETER = 12
#: Share of a NIC's rate that transfers reach, as the artifact assumes.
REACHED = 0.85
#: Durable storage, shared by all machines: 20 Gbps.
STORAGE_BYTES_PER_SECOND = 20e9 / 8
#: Host memory to which received chunks are copied, on machines with links of 400 Gbps.
COPY_BYTES_PER_SECOND = 400e9 / 8
DURABLE_PERIOD_SECONDS = 3 * 3600.0

DETECTION_SECONDS = 15.0
SERIALIZATION_SECONDS = 81.0
WARM_UP_SECONDS = 240.0
REPLACEMENT_SECONDS = 330.0
RETRIEVAL_SECONDS = 3.0
FAILURES_A_DAY = 0.015


@dataclass(frozen=True, slots=True)
class TrainedModel:
    """A model in training: parameters, machines, the rate of their links, and seconds for an iteration."""

    name: str
    parameters: float
    machines: int
    link_gbps: float
    iteration_seconds: float

    @property
    def state_bytes(self) -> float:
        """The whole state: weights and both moments of Adam."""
        return BYTES_PER_PARAMETER * self.parameters

    @property
    def machine_bytes(self) -> float:
        """The state of one machine."""
        return self.state_bytes / self.machines

    def link(self, reached: float = REACHED) -> Link:
        """What one machine sends over."""
        return Link(reached * self.link_gbps * 1e9 / 8)

    @property
    def storage_seconds(self) -> float:
        """To write or read the whole state in durable storage."""
        return self.state_bytes / STORAGE_BYTES_PER_SECOND

    def memory_seconds(self, replicas: int = 2, reached: float = REACHED) -> float:
        """To send one machine's state to its peers, back to back, through sub-buffers."""
        link = self.link(reached)
        plan = partition((0.0,), round(self.machine_bytes), replicas, link, DEFAULT_BUFFERS)
        return transmit([chunk.size for chunk in plan.chunks], link, COPY_BYTES_PER_SECOND, 4).network_seconds


def gpt2_100b(machines: int = 16, link_gbps: float = 400.0) -> TrainedModel:
    """GPT-2 100B as measured on 16 machines; the state on others grows with them, as in the notebook that
    draws the figures."""
    return TrainedModel("GPT-2 100B", 1e11 * machines / 16, machines, link_gbps, 62.0)


def high_frequency(model: TrainedModel, *, stalls: bool) -> tuple[int, Checkpointing]:
    """HighFreq: a checkpoint to storage as soon as the last one is written. Iterations between two, and its
    times.

    ``stalls``: training waits while the state is serialized, as it was measured; 9.05 iterations, which the
    text calls 9.
    """
    seconds = model.storage_seconds + (SERIALIZATION_SECONDS if stalls else 0.0)
    every = (
        round(seconds / model.iteration_seconds)
        if stalls
        else iterations_between(seconds, model.iteration_seconds)
    )
    period = every * model.iteration_seconds
    return every, Checkpointing(model.storage_seconds, period, model.storage_seconds)


def strawman(model: TrainedModel) -> Checkpointing:
    """A checkpoint to storage every three hours."""
    return Checkpointing(model.storage_seconds, DURABLE_PERIOD_SECONDS, model.storage_seconds)


def gemini(model: TrainedModel, retrieval_seconds: float = 0.0) -> Checkpointing:
    """A recovery point in memory each iteration."""
    return in_memory(model.iteration_seconds, 1, retrieval_seconds)


def failure_cost(*, hardware: bool, lost_work_seconds: float = 0.0) -> FailureCost:
    """One failure as measured: two replicas are serialized, and training warms up again."""
    return FailureCost(
        fence_seconds=DETECTION_SECONDS,
        resources_seconds=REPLACEMENT_SECONDS if hardware else 0.0,
        recovery_seconds=2 * SERIALIZATION_SECONDS + WARM_UP_SECONDS,
        lost_work_seconds=lost_work_seconds,
    )


def notebook_cost(minutes: float) -> FailureCost:
    """What the notebook that draws the scaling figures charges for a failure."""
    return FailureCost(0.0, 0.0, minutes * MINUTE_SECONDS, 0.0)


NOTEBOOK_MINUTES = {"Gemini": 9.0, "Strawman": 8 + 8 + 90 + 6.0, "HighFreq": 8 * 2.5 + 6}
NOTEBOOK_BASE = {"Gemini": 1.0, "Strawman": 1.0, "HighFreq": 480 / 560}
