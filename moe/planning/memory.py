"""Memory that a worker needs for its part of a model with experts, and the numbers of workers that fit.

Every worker has all states outside of the experts, and its share of the experts. A state is a weight, its
gradient and what the optimizer keeps of it. Activations are not counted: what is said not to fit does not
fit.
"""

from __future__ import annotations

from bisect import bisect_left
from dataclasses import dataclass
from enum import StrEnum


class Memory(StrEnum):
    """What binds."""

    DEVICE = "device memory"
    HOST = "host memory"


@dataclass(frozen=True)
class ExpertLayer:
    """Experts of a layer.

    Attributes:
        state_bytes: of one expert: weights, gradients, and what the optimizer keeps.
    """

    experts: int
    state_bytes: int


@dataclass(frozen=True)
class ModelSizes:
    """What a model takes.

    Attributes:
        parameter_bytes: weights of the whole model. Each worker builds it in host memory.
        dense_state_bytes: states that are whole on every worker.
        layers: those whose experts are spread.
        on_host: whether the workers' devices are their hosts' processors, as emulated GPUs are.
    """

    parameter_bytes: int
    dense_state_bytes: int
    layers: tuple[ExpertLayer, ...]
    on_host: bool = False

    def expert_bytes(self, workers: int, packing: int = 1) -> int:
        """Return the states of experts on the fullest worker, where `packing` workers host each expert."""
        return sum(
            min(layer.experts, -(-layer.experts * packing // workers)) * layer.state_bytes
            for layer in self.layers
        )

    def needed_bytes(self, memory: Memory, workers: int) -> int:
        """Return the least that a worker needs of its device or host."""
        states = self.dense_state_bytes + self.expert_bytes(workers)
        if memory is Memory.DEVICE:
            return states
        return max(self.parameter_bytes, states if self.on_host else 0)


@dataclass(frozen=True)
class WorkerMemory:
    """What each worker is sure of, in bytes; infinity where it is not known."""

    device_bytes: float
    host_bytes: float

    def of(self, memory: Memory) -> float:
        """Return the bytes of the device or of the host."""
        return self.device_bytes if memory is Memory.DEVICE else self.host_bytes


def find_binding(sizes: ModelSizes, share: WorkerMemory, workers: int) -> Memory | None:
    """Return what binds on a number of workers: of what is short, where most is missing. None if all fits."""
    short = {
        memory: sizes.needed_bytes(memory, workers) / max(share.of(memory), 1.0)
        for memory in Memory
        if sizes.needed_bytes(memory, workers) > share.of(memory)
    }
    return max(short, key=short.__getitem__) if short else None


def fewest_workers(sizes: ModelSizes, share: WorkerMemory) -> int | None:
    """Return the least number of workers that hold the model; None if no number does."""
    counts = range(1, max((layer.experts for layer in sizes.layers), default=1) + 1)
    at = bisect_left(counts, True, key=lambda workers: find_binding(sizes, share, workers) is None)
    return counts[at] if at < len(counts) else None


def bytes_for_packing(sizes: ModelSizes, workers: int, left_bytes: int) -> int | None:
    """Return the most bytes that the experts of a worker may take; None if two hosts of each expert are
    already too many.

    Args:
        left_bytes: memory that a worker has left while each expert has one host.
    """
    allowed = left_bytes + sizes.expert_bytes(workers)
    fits = workers % 2 == 0 and sizes.expert_bytes(workers, packing=2) <= allowed
    return allowed if fits else None
