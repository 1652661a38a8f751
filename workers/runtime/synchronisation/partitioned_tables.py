"""Tables whose columns are divided among the ranks (MoESys).

Ids are gathered from all ranks. Each rank looks all of them up in its columns, and an all-to-all returns
complete rows. Gradients take the reverse path, so each rank has the whole gradient of its columns. States
move like those of experts.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from moe.moesys.embedding import ColumnPartition
from punctual.function import TrainingFunction
from punctual.moe.tables import (
    LocalTableExchange,
    PartitionedEmbedding,
    TableExchange,
    partitioned_tables,
)
from workers.runtime.experts.divisible_tables import divisible_tables


def owners_of_blocks(blocks: int, ranks: int) -> tuple[int, ...]:
    """Return the rank of each block of a table. Ranks beyond the number of blocks have none."""
    partition = ColumnPartition(blocks, min(blocks, ranks))
    return tuple(rank for rank, width in enumerate(partition.widths) for _ in range(width))


class GroupTableExchange(TableExchange):
    """Looks up rows together with the ranks of a group."""

    def __init__(self, blocks: int, group: dist.ProcessGroup) -> None:
        owners = owners_of_blocks(blocks, dist.get_world_size(group))
        self._group, self._rank = group, dist.get_rank(group)
        self._blocks = [
            [block for block, owner in enumerate(owners) if owner == rank]
            for rank in range(dist.get_world_size(group))
        ]

    def look_up(self, table: PartitionedEmbedding, ids: Tensor) -> Tensor:
        """Exchange ids, then columns."""
        counts, gathered = self._gather(ids)
        own = self._blocks[self._rank]
        dtype = table.blocks[0].dtype
        found = table.look_up(gathered, own) if own else gathered.new_empty(len(gathered), 0, dtype=dtype)
        # Every rank takes part in the backward pass.
        if torch.is_grad_enabled() and not found.requires_grad:
            found.requires_grad_()
        widths = [sum(table.blocks[block].shape[1] for block in blocks) for blocks in self._blocks]
        rows: Tensor = _ReturnColumns.apply(found, counts, widths, self._rank, self._group)
        return rows

    def _gather(self, ids: Tensor) -> tuple[list[int], Tensor]:
        """Return the number of ids of each rank, and all ids in the order of ranks."""
        length = torch.tensor([len(ids)], device=ids.device)
        lengths = [torch.empty_like(length) for _ in self._blocks]
        dist.all_gather(lengths, length, group=self._group)
        counts = [int(each) for each in lengths]
        padded = ids.new_zeros(max(counts))
        padded[: len(ids)] = ids
        gathered = [torch.empty_like(padded) for _ in counts]
        if max(counts):
            dist.all_gather(gathered, padded, group=self._group)
        return counts, torch.cat([each[:count] for each, count in zip(gathered, counts, strict=True)])


class RehearsedTableExchange(TableExchange):
    """Looks up the blocks that this rank has; other columns are 0. For measuring time and memory."""

    def __init__(self, own: Sequence[int]) -> None:
        self._own = own

    def look_up(self, table: PartitionedEmbedding, ids: Tensor) -> Tensor:
        """Look up and pad."""
        if not self._own:
            return table.blocks[0].new_zeros(len(ids), table.width)
        found = table.look_up(ids, self._own)
        return nn.functional.pad(found, (0, table.width - found.shape[1]))


class _ReturnColumns(torch.autograd.Function):
    """Sends each rank the rows of its ids. Backward, sends the gradients of these rows' columns back."""

    @staticmethod
    def forward(
        ctx: Any, columns: Tensor, counts: list[int], widths: list[int], rank: int, group: dist.ProcessGroup
    ) -> Tensor:
        """Return (own ids, width).

        Args:
            columns: (ids of all ranks, own columns).
            counts: ids of each rank.
            widths: columns of each rank.
        """
        ctx.told = counts, widths, rank, group
        sent = [count * widths[rank] for count in counts]
        received = [counts[rank] * width for width in widths]
        flat = _all_to_all(columns.reshape(-1), sent, received, group)
        pieces = flat.split(received)
        return torch.cat(
            [piece.view(counts[rank], width) for piece, width in zip(pieces, widths, strict=True)], dim=1
        )

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None, None]:
        """Return the gradient of the columns."""
        counts, widths, rank, group = ctx.told
        sent = [counts[rank] * width for width in widths]
        received = [count * widths[rank] for count in counts]
        leaving = torch.cat([piece.reshape(-1) for piece in gradients[0].split(widths, dim=1)])
        arrived = _all_to_all(leaving, sent, received, group)
        return arrived.view(sum(counts), widths[rank]), None, None, None, None


def _all_to_all(sent: Tensor, sizes: list[int], received: list[int], group: dist.ProcessGroup) -> Tensor:
    found = sent.new_empty(sum(received))
    dist.all_to_all_single(found, sent.contiguous(), received, sizes, group=group)
    return found


class PartitionedTables:
    """The tables of a model on this rank.

    Attributes:
        hosts: the rank of each block, by the parameter's name.
    """

    def __init__(self, function: TrainingFunction, module: nn.Module) -> None:
        self._places = divisible_tables(function, module)
        ids = {id(module.get_parameter(name)) for name in self._places}
        self._tables = [table for table in partitioned_tables(module).values() if id(table.blocks[0]) in ids]
        self._blocks = {
            name: len(table.blocks)
            for name in self._places
            for table in self._tables
            if any(block is module.get_parameter(name) for block in table.blocks)
        }
        self.hosts: dict[str, tuple[int, ...]] = {}
        self._rank = 0

    @property
    def names(self) -> frozenset[str]:
        """Names of the blocks' parameters."""
        return frozenset(self._places)

    def place(self, ranks: int) -> None:
        """Assign each block to a rank."""
        self.hosts = {
            name: (owners_of_blocks(self._blocks[name], ranks)[place],)
            for name, place in self._places.items()
        }

    def connect(self, group: dist.ProcessGroup) -> None:
        """Look up later rows together with the other ranks."""
        for table in self._tables:
            table.exchange = GroupTableExchange(len(table.blocks), group)

    def disconnect(self) -> None:
        """Look up later rows on this rank alone."""
        for table in self._tables:
            table.exchange = LocalTableExchange()

    @contextmanager
    def rehearsing(self, rank: int, ranks: int) -> Iterator[None]:
        """Look up only the blocks of this rank."""
        exchanges = [table.exchange for table in self._tables]
        for table in self._tables:
            owners = owners_of_blocks(len(table.blocks), ranks)
            table.exchange = RehearsedTableExchange(
                [block for block, owner in enumerate(owners) if owner == rank]
            )
        try:
            yield
        finally:
            for table, exchange in zip(self._tables, exchanges, strict=True):
                table.exchange = exchange
