"""The order of samples for the hyperparameter `sample_order`: from the second epoch on, samples with similar
shares of two-expert tokens are neighbours (adaptive gating, 5.4).

The last routing counts of all samples and the order of the current epoch are part of the job's state. They
alone determine the order of the next epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn

from moe.gating.curriculum import Curriculum, SampleRecord, order_samples
from punctual.moe import MoELayer, TopK, moe_layers
from workers.runtime.data.batches import LocalBatch
from workers.runtime.data.sample_order import SampleOrder
from workers.runtime.failures import WorkerFailureError
from workers.runtime.process_group import sum_beside

#: Samples times layers. Each takes eight bytes in every state of the job.
LARGEST_RECORD = 64 << 20


class CurriculumOrder(SampleOrder):
    """A random order in the first epoch; later orders are computed from the record at the epoch's start.

    A batch may span the end of an epoch. Its samples of the old epoch then count with their records of one
    epoch earlier; at the end of the first epoch they have no record and come last.
    """

    def __init__(
        self, dataset_size: int, global_batch_size: int, seed: int, *, curriculum: Curriculum, layers: int
    ) -> None:
        super().__init__(dataset_size, global_batch_size, seed)
        self.curriculum = curriculum
        # Tokens, and those of them that went to two experts: (2, samples, layers).
        self._record = torch.zeros((2, dataset_size, layers), dtype=torch.int32)
        self._orders: dict[int, Tensor] = {}

    def known_until(self, iteration: int) -> int:
        """Return the first iteration with samples of an epoch that begins after `iteration`."""
        epoch = ((iteration + 1) * self.global_batch_size - 1) // self.dataset_size
        return (epoch + 1) * self.dataset_size // self.global_batch_size

    def _permutation(self, epoch: int) -> Tensor:
        if epoch == 0:
            return super()._permutation(epoch)
        if epoch not in self._orders:
            tokens, two = self._record.numpy().astype(np.int64)
            order = order_samples(SampleRecord(tokens, two), self.curriculum)
            self._orders = {known: each for known, each in self._orders.items() if known >= epoch - 1}
            self._orders[epoch] = torch.from_numpy(order)
        return self._orders[epoch]

    def note(self, indices: Tensor, counts: Tensor) -> None:
        """Replace the records of a global batch's samples.

        Args:
            indices: (samples).
            counts: (2, samples, layers): tokens, and those of them that went to two experts.
        """
        # If a batch has a sample twice, the later place counts; NumPy guarantees that, torch does not.
        self._record.numpy()[:, indices.numpy()] = counts.numpy()

    def state(self, iteration: int) -> dict[str, Any]:
        """Return the state after `iteration` iterations that determines later orders; tensors are shared."""
        epoch = iteration * self.global_batch_size // self.dataset_size
        return {"record": self._record, "epoch": epoch, "order": self._orders.get(epoch)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Load a state returned by `state`."""
        self._record = state["record"].clone()
        self._orders = {} if state["order"] is None else {state["epoch"]: state["order"].clone()}


def build_order(
    curriculum: Curriculum | None, module: nn.Module, dataset_size: int, global_batch_size: int, seed: int
) -> SampleOrder:
    """Build the order of samples.

    Args:
        curriculum: None for a random order.

    Raises:
        WorkerFailureError: the model has no adaptive gate, or there are too many samples to record.
    """
    if curriculum is None:
        return SampleOrder(dataset_size, global_batch_size, seed)
    layers = len(_adaptive_layers(module))
    if not layers:
        raise _refused(curriculum, "the model has no MoELayer with an adaptive gate to go by: leave it out")
    if dataset_size * layers > LARGEST_RECORD:
        raise _refused(
            curriculum,
            f"{dataset_size} samples times {layers} layers are more than the {LARGEST_RECORD} counts that a "
            "job can keep: leave it out",
        )
    return CurriculumOrder(dataset_size, global_batch_size, seed, curriculum=curriculum, layers=layers)


def _adaptive_layers(module: nn.Module) -> dict[str, MoELayer]:
    """Return the layers whose tokens may have different numbers of experts."""
    return {name: layer for name, layer in moe_layers(module).items() if not isinstance(layer.gate, TopK)}


def _refused(curriculum: Curriculum, problem: str) -> WorkerFailureError:
    return WorkerFailureError("function_error", f'sample_order "{curriculum}": {problem}')


class SampleCounts:
    """Gathers the counts of all ranks' samples, once in each iteration."""

    def __init__(self, order: CurriculumOrder, module: nn.Module, group: dist.ProcessGroup | None) -> None:
        self._order = order
        self._layers = _adaptive_layers(module)
        self._group = group
        self._counts = torch.empty(0)
        self._work: dist.Work | None = None
        for layer in self._layers.values():
            layer.records.counts_samples = True

    def begin(self, batch: LocalBatch, world_size: int) -> None:
        """Start to sum the counts of this iteration's samples over the ranks.

        Raises:
            WorkerFailureError: the first dimension of a layer's tokens is not the batch's samples.
        """
        shape = (2, self._order.global_batch_size, len(self._layers))
        self._counts = torch.zeros(shape, dtype=torch.int32)
        own = slice(batch.first_place, batch.first_place + batch.size)
        for place, (name, layer) in enumerate(self._layers.items()):
            for counts in layer.records.take_sample_counts():
                self._check(name, counts.shape[1], len(batch.indices))
                self._counts[:, own, place] += counts[:, : batch.size].to(self._counts)
        self._work = sum_beside(self._counts, self._group) if world_size > 1 else None

    def _check(self, name: str, found: int, samples: int) -> None:
        if found != samples:
            raise _refused(
                self._order.curriculum,
                f"the layer {name or 'itself'} had {found} samples in train(), and the batch has {samples}: "
                "give it tokens of the shape (samples, ..., width), in the order of the batch, or leave "
                "sample_order out",
            )

    def end(self, batch: LocalBatch) -> None:
        """Record the sums."""
        if self._work is not None:
            self._work.wait()
        self._order.note(batch.global_indices, self._counts)
