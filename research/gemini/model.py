"""The published evaluation in numbers: clusters, models, and measured times (4.1)."""

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
#: Rate of copying received chunks to host memory, on machines with links of 400 Gbps.
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
    """A model in training: parameters, machines, their links' rate, and seconds of an iteration."""

    name: str
    parameters: float
    machines: int
    link_gbps: float
    iteration_seconds: float

    @property
    def state_bytes(self) -> float:
        """Bytes of the whole state: weights and both moments of Adam."""
        return BYTES_PER_PARAMETER * self.parameters

    @property
    def machine_bytes(self) -> float:
        """Bytes of one machine's state."""
        return self.state_bytes / self.machines

    def link(self, reached: float = REACHED) -> Link:
        """Return one machine's link."""
        return Link(reached * self.link_gbps * 1e9 / 8)

    @property
    def storage_seconds(self) -> float:
        """Seconds to write or read the whole state in durable storage."""
        return self.state_bytes / STORAGE_BYTES_PER_SECOND

    def memory_seconds(self, replicas: int = 2, reached: float = REACHED) -> float:
        """Return the seconds to send one machine's state to its peers, back to back, through sub-buffers."""
        link = self.link(reached)
        plan = partition((0.0,), round(self.machine_bytes), replicas, link, DEFAULT_BUFFERS)
        return transmit([chunk.size for chunk in plan.chunks], link, COPY_BYTES_PER_SECOND, 4).network_seconds


def gpt2_100b(machines: int = 16, link_gbps: float = 400.0) -> TrainedModel:
    """Return GPT-2 100B as measured on 16 machines; with others the state grows in proportion, as in the
    notebook that draws the figures."""
    return TrainedModel("GPT-2 100B", 1e11 * machines / 16, machines, link_gbps, 62.0)


def high_frequency(model: TrainedModel, *, stalls: bool) -> tuple[int, Checkpointing]:
    """Return HighFreq, a checkpoint to storage as soon as the last one is written: the iterations between
    two, and its times.

    ``stalls``: training waits during serialization, as measured; 9.05 iterations, which the text calls 9.
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
    """Return a checkpoint to storage every three hours."""
    return Checkpointing(model.storage_seconds, DURABLE_PERIOD_SECONDS, model.storage_seconds)


def gemini(model: TrainedModel, retrieval_seconds: float = 0.0) -> Checkpointing:
    """Return a recovery point in memory in each iteration."""
    return in_memory(model.iteration_seconds, 1, retrieval_seconds)


def failure_cost(*, hardware: bool, lost_work_seconds: float = 0.0) -> FailureCost:
    """Return the cost of one failure as measured: serialization of two replicas, and the warm-up."""
    return FailureCost(
        fence_seconds=DETECTION_SECONDS,
        resources_seconds=REPLACEMENT_SECONDS if hardware else 0.0,
        recovery_seconds=2 * SERIALIZATION_SECONDS + WARM_UP_SECONDS,
        lost_work_seconds=lost_work_seconds,
    )


def notebook_cost(minutes: float) -> FailureCost:
    """Return the cost of a failure in the notebook that draws the scaling figures."""
    return FailureCost(0.0, 0.0, minutes * MINUTE_SECONDS, 0.0)


NOTEBOOK_MINUTES = {"Gemini": 9.0, "Strawman": 8 + 8 + 90 + 6.0, "HighFreq": 8 * 2.5 + 6}
NOTEBOOK_BASE = {"Gemini": 1.0, "Strawman": 1.0, "HighFreq": 480 / 560}
