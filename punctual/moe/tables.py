"""An embedding whose columns may lie on several workers, and the seam to what exchanges them (MoESys)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

#: A table has at most so many blocks of columns. Workers beyond them have none.
MOST_BLOCKS = 64


class TableExchange(ABC):
    """Looks up complete rows of a table whose blocks of columns lie on several ranks.

    All ranks call it in the same order, once for each forward pass of a table.
    """

    @abstractmethod
    def look_up(self, table: PartitionedEmbedding, ids: Tensor) -> Tensor:
        """Return the rows of this rank's ids, as (ids, width); gradients flow back to the blocks.

        Args:
            ids: (ids).
        """


class LocalTableExchange(TableExchange):
    """All columns are in this process."""

    def look_up(self, table: PartitionedEmbedding, ids: Tensor) -> Tensor:
        """Look up all blocks."""
        return table.look_up(ids, range(len(table.blocks)))


class PartitionedEmbedding(nn.Module):
    """An embedding for large tables. On the platform each worker keeps some of its columns.

    It computes what `nn.Embedding` computes. On several workers, ids and rows of a batch travel instead of
    the gradient of the whole table, and a worker has memory for its own columns only.

    Attributes:
        blocks: the table by columns, in order.
        exchange: looks up the blocks; local unless another is set.
    """

    def __init__(self, rows: int, width: int, *, padding_index: int | None = None) -> None:
        """Build the table with the random values of `nn.Embedding`.

        Args:
            rows: number of ids.
            width: elements of a row.
            padding_index: an id whose row is 0 and stays so.

        Raises:
            ValueError: an argument is out of range; the message names it.
        """
        super().__init__()
        for name, value in (("rows", rows), ("width", width)):
            if not isinstance(value, int) or isinstance(value, bool) or value < 1:
                raise ValueError(f"{name} is {value!r}; it must be a whole number of at least 1.")
        if padding_index is not None and not 0 <= padding_index < rows:
            raise ValueError(f"padding_index is {padding_index!r}; it must be from 0 to {rows - 1} or None.")
        self.rows, self.width, self.padding_index = rows, width, padding_index
        weight = torch.empty(rows, width).normal_()
        if padding_index is not None:
            weight[padding_index] = 0
        self.blocks = nn.ParameterList(
            block.clone() for block in weight.tensor_split(min(width, MOST_BLOCKS), dim=1)
        )
        self.exchange: TableExchange = LocalTableExchange()

    def forward(self, ids: Tensor) -> Tensor:
        """Return the rows of ids of any shape, as (*shape, width)."""
        found = self.exchange.look_up(self, ids.reshape(-1))
        return found.view(*ids.shape, self.width)

    def look_up(self, ids: Tensor, blocks: Sequence[int]) -> Tensor:
        """Return the columns of some blocks, as (ids, columns)."""
        return torch.cat(
            [functional.embedding(ids, self.blocks[block], self.padding_index) for block in blocks], dim=1
        )

    @property
    def weight(self) -> Tensor:
        """The whole table, as (rows, width)."""
        return torch.cat(list(self.blocks), dim=1)

    def extra_repr(self) -> str:
        """Return what `print(model)` shows of the table itself."""
        return f"rows={self.rows}, width={self.width}"

    def __getstate__(self) -> dict[str, Any]:
        """Copy without process groups, which cannot be copied."""
        return {**self.__dict__, "exchange": LocalTableExchange()}


def partitioned_tables(model: nn.Module) -> dict[str, PartitionedEmbedding]:
    """Return the tables by their names in the model. A table with several names comes once."""
    return {
        name: module for name, module in model.named_modules() if isinstance(module, PartitionedEmbedding)
    }


def table_blocks(model: nn.Module) -> dict[str, int]:
    """Return the places of blocks in their tables, by the parameters' names in the model's `state_dict`. A
    table with several names has its blocks under each of them."""
    return {
        f"{table}.blocks.{place}".lstrip("."): place
        for table, module in model.named_modules(remove_duplicate=False)
        if isinstance(module, PartitionedEmbedding)
        for place in range(len(module.blocks))
    }
