"""Synchronises the gradients of embeddings with `sparse=True`.

A batch touches few rows of an embedding. Each rank sends the rows it touched, all ranks gather them and sum
rows with the same index. Traffic grows with the batch, not with the table, on gloo and NCCL alike. DDP
ignores these parameters: it would all-reduce sparse tensors, which NCCL lacks and on which gloo, in PyTorch
2.13, crashes (docs/decisions/0023-sparse-gradients.md).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from workers.runtime.function.parts import TrainingParts
from workers.runtime.synchronisation.interface import GradientSynchroniser

#: Stands for the number of rows of a gradient that is dense.
_DENSE = -1


class SparseSynchroniser(GradientSynchroniser):
    """Takes the tables with sparse gradients; averages them after the backward pass."""

    def __init__(self, choices: Mapping[str, Any]) -> None:
        if choices:
            raise ValueError(f"there is nothing to choose, but it was given {sorted(choices)}")
        self._parameters: list[nn.Parameter] = []
        self._group: dist.ProcessGroup | None = None
        self._world_size = 1

    def takes(self, parts: TrainingParts, left: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return the trained embedding tables with `sparse=True`."""
        tables = tables_of_rows(parts.module)
        return {name: parameter for name, parameter in left.items() if id(parameter) in tables}

    def wrap(
        self,
        parts: TrainingParts,
        group: dist.ProcessGroup | None,
        parameters: Mapping[str, nn.Parameter],
    ) -> None:
        """Store the parameters; wrap nothing."""
        self._parameters = list(parameters.values())
        self._group = group
        self._world_size = dist.get_world_size(group)

    def begin_alike(self) -> None:
        """Give every rank the group's first rank's tables."""
        first_ones_values(self._parameters, self._group)

    def after_backward(self) -> None:
        """Replace each gradient by the mean over ranks."""
        if self._world_size == 1 or not self._parameters:
            return
        local = [_rows_and_values(parameter) for parameter in self._parameters]
        told = [_DENSE if each is None else len(each[0]) for each in local]
        counts = torch.stack(self._gather(torch.tensor(told)))
        rows = {
            place: each
            for place, each in enumerate(local)
            if each is not None and (counts[:, place] != _DENSE).all()
        }
        for place, parameter in enumerate(self._parameters):
            if place not in rows:
                self._average_whole(parameter)
        if rows:
            self._average([self._parameters[place] for place in rows], [*rows.values()], counts[:, [*rows]])

    def state(self) -> dict[str, Tensor]:
        """Return {}: this kind has no state."""
        return {}

    def load_state(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Do nothing: this kind has no state."""

    def _average_whole(self, parameter: nn.Parameter) -> None:
        """Average a gradient that is dense on some rank, because the table was also used densely there."""
        gradient = torch.zeros_like(parameter) if parameter.grad is None else parameter.grad
        parameter.grad = gradient.to_dense() if gradient.is_sparse else gradient
        dist.all_reduce(parameter.grad, group=self._group)
        parameter.grad /= self._world_size

    def _average(
        self, parameters: Sequence[nn.Parameter], local: Sequence[tuple[Tensor, Tensor]], counts: Tensor
    ) -> None:
        """Average by two collectives for all tables together: row indices, values.

        Args:
            local: those of this rank. counts: how many rows each rank has of each table.
        """
        widths = [math.prod(parameter.shape[1:]) for parameter in parameters]
        most_rows = max(int(each.sum()) for each in counts)
        most_values = max(int((each * torch.tensor(widths)).sum()) for each in counts)
        rows = self._gather(_padded(torch.cat([rows for rows, _ in local]), most_rows))
        values = self._gather(_padded(torch.cat([values.flatten() for _, values in local]), most_values))
        rows_at, values_at = [0] * self._world_size, [0] * self._world_size
        for place, (parameter, width) in enumerate(zip(parameters, widths, strict=True)):
            all_rows, all_values = [], []
            for rank, each in enumerate(counts):
                count = int(each[place])
                all_rows.append(rows[rank][rows_at[rank] : rows_at[rank] + count])
                all_values.append(values[rank][values_at[rank] : values_at[rank] + count * width])
                rows_at[rank] += count
                values_at[rank] += count * width
            parameter.grad = torch.sparse_coo_tensor(
                torch.cat(all_rows)[None],
                # Tables of several types travel as one that holds them all.
                (torch.cat(all_values).view(-1, *parameter.shape[1:]) / self._world_size).to(parameter.dtype),
                parameter.shape,
                check_invariants=False,
            ).coalesce()

    def _gather(self, tensor: Tensor) -> list[Tensor]:
        gathered = [torch.empty_like(tensor) for _ in range(self._world_size)]
        dist.all_gather(gathered, tensor, group=self._group)
        return gathered


def tables_of_rows(module: nn.Module) -> frozenset[int]:
    """Return the ids of the weights of embeddings with `sparse=True`, whose gradients are rows."""
    return frozenset(
        id(part.weight)
        for part in module.modules()
        if isinstance(part, nn.Embedding | nn.EmbeddingBag) and part.sparse
    )


def first_ones_values(parameters: Sequence[nn.Parameter], group: dist.ProcessGroup | None) -> None:
    """Give every rank the group's first rank's values."""
    if dist.get_world_size(group) > 1:
        first = 0 if group is None else dist.get_global_rank(group, 0)
        for parameter in parameters:
            dist.broadcast(parameter.detach(), src=first, group=group)


def _rows_and_values(parameter: nn.Parameter) -> tuple[Tensor, Tensor] | None:
    """Return the row indices of a gradient (each once) and their values; empty if the table was not used,
    None if the gradient is dense."""
    if parameter.grad is None:
        return (
            torch.empty(0, dtype=torch.int64, device=parameter.device),
            torch.empty(0, *parameter.shape[1:], dtype=parameter.dtype, device=parameter.device),
        )
    if not parameter.grad.is_sparse:
        return None
    gradient = parameter.grad.coalesce()
    return gradient.indices()[0], gradient.values()


def _padded(tensor: Tensor, length: int) -> Tensor:
    """Return `tensor` padded with zeros to a length that is the same on every rank."""
    return torch.cat([tensor, tensor.new_zeros(length - len(tensor))])
