"""Memory that a worker needs for its part of a model with experts, and the numbers of workers that fit.

Every worker has all states outside of the experts, and its share of the experts. A state is a weight, its
gradient and its optimizer state. Activations are not counted, so the sizes are lower bounds.

With experts in tiers (MoESys), files hold the weights and optimizer states. Host memory holds those of
two layers, and the gradients of all experts until the optimizer's step. The device holds the weights and
gradients of one expert at a time.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import inf

from moe.moesys.choices import LAYERS_IN_HOST_MEMORY


class Memory(StrEnum):
    """A memory that may be too small."""

    DEVICE = "device memory"
    HOST = "host memory"
    DISK = "disk"


@dataclass(frozen=True)
class ExpertLayer:
    """Experts of a layer.

    Attributes:
        state_bytes: of one expert: weights, gradients and optimizer states.
        weight_bytes: of one expert: its weights alone, as many as its gradients.
        is_tiered: whether the states are in tiers.
    """

    experts: int
    state_bytes: int
    weight_bytes: int = 0
    is_tiered: bool = False

    @property
    def file_bytes(self) -> int:
        """Bytes of one expert in a file: weights and optimizer states."""
        return self.state_bytes - self.weight_bytes

    def hosted(self, workers: int, packing: int = 1) -> int:
        """Return the experts on the fullest worker, where `packing` workers host each expert."""
        return min(self.experts, -(-self.experts * packing // workers))


@dataclass(frozen=True)
class ModelSizes:
    """Sizes of a model.

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
        return sum(layer.hosted(workers, packing) * layer.state_bytes for layer in self.layers)

    @property
    def has_tiers(self) -> bool:
        """Whether states of any layer are in tiers."""
        return any(layer.is_tiered for layer in self.layers)

    def in_tiers(self, is_tiered: bool = True) -> ModelSizes:
        """Return the same model with the states of all experts in tiers, or with none."""
        return replace(self, layers=tuple(replace(layer, is_tiered=is_tiered) for layer in self.layers))

    def needed_bytes(self, memory: Memory, workers: int) -> int:
        """Return the least that a worker needs of its device, host or disk."""
        tiered = [layer for layer in self.layers if layer.is_tiered]
        if memory is Memory.DISK:
            return sum(layer.hosted(workers) * layer.file_bytes for layer in tiered)
        resident = replace(self, layers=tuple(layer for layer in self.layers if not layer.is_tiered))
        states = self.dense_state_bytes + resident.expert_bytes(workers)
        if memory is Memory.DEVICE:
            return states + max((2 * layer.weight_bytes for layer in tiered), default=0)
        return max(self.parameter_bytes, (states if self.on_host else 0) + _host_tier_bytes(tiered, workers))


@dataclass(frozen=True)
class WorkerMemory:
    """Memory guaranteed to each worker, in bytes; infinity if unknown."""

    device_bytes: float
    host_bytes: float
    disk_bytes: float = inf

    def of(self, memory: Memory) -> float:
        """Return the bytes of the device, of the host or of the disk."""
        return {
            Memory.DEVICE: self.device_bytes, Memory.HOST: self.host_bytes, Memory.DISK: self.disk_bytes
        }[memory]  # fmt: skip


def find_binding(sizes: ModelSizes, share: WorkerMemory, workers: int) -> Memory | None:
    """Return the memory with the largest relative shortage on a number of workers; None if all fits."""
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


def _host_tier_bytes(layers: Sequence[ExpertLayer], workers: int) -> int:
    """Return the host memory that a worker's tiers take: cached states, and the gradients of its experts.

    Experts of one size share a cache. It has room for `LAYERS_IN_HOST_MEMORY` of their largest layer.
    """
    hosted_by_size: dict[int, list[int]] = defaultdict(list)
    for layer in layers:
        hosted_by_size[layer.file_bytes].append(layer.hosted(workers))
    cached = sum(
        size * min(sum(hosted), LAYERS_IN_HOST_MEMORY * max(hosted))
        for size, hosted in hosted_by_size.items()
    )
    return cached + sum(layer.hosted(workers) * layer.weight_bytes for layer in layers)
