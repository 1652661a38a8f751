"""Embedding tables that data-parallel workers share by columns.

Every worker has all rows and some columns. Ids are gathered from all workers, each worker reads all their
rows from its columns, and an all-to-all returns complete rows. Gradients go the reverse way; the table needs
no all-reduce.
"""

from __future__ import annotations

from dataclasses import dataclass

from moe.moesys.capacity import STATE_BYTES
from moe.moesys.checks import check_at_least, check_not_negative

ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class ColumnPartition:
    """Columns of a table on workers. The first workers have one more if the columns do not divide evenly.

    Raises:
        ValueError: there is no worker, or there are fewer columns than workers.
    """

    columns: int
    workers: int

    def __post_init__(self) -> None:
        check_at_least("workers", self.workers)
        check_at_least("columns", self.columns, self.workers)

    @property
    def widths(self) -> tuple[int, ...]:
        """Columns of each worker."""
        even, more = divmod(self.columns, self.workers)
        return tuple(even + (worker < more) for worker in range(self.workers))

    def owned(self, worker: int) -> tuple[int, int]:
        """Return begin and end of a worker's columns."""
        begin = sum(self.widths[:worker])
        return begin, begin + self.widths[worker]


@dataclass(frozen=True, slots=True)
class TableTraffic:
    """Bytes that each worker sends for a table in one iteration.

    Attributes:
        samples: ids of one worker.
        element_bytes: of one element of the table.

    Raises:
        ValueError: there is no row, column or worker, or samples are negative.
    """

    rows: int
    columns: int
    workers: int
    samples: int
    element_bytes: int = 4

    def __post_init__(self) -> None:
        for name in ("rows", "columns", "workers", "element_bytes"):
            check_at_least(name, getattr(self, name))
        check_not_negative("samples", self.samples)

    @property
    def replicated_bytes(self) -> float:
        """All-reduce of the gradient of a table that every worker has."""
        return 2 * self._others * self.rows * self.columns * self.element_bytes

    @property
    def partitioned_bytes(self) -> float:
        """Ids, rows, and gradients of rows."""
        ids = (self.workers - 1) * self.samples * ID_BYTES
        return ids + 2 * self._others * self.samples * self.columns * self.element_bytes

    @property
    def saved_memory_bytes(self) -> float:
        """Least memory that a partition saves on each worker."""
        return STATE_BYTES * self.rows * self.columns * self._others

    @property
    def _others(self) -> float:
        return (self.workers - 1) / self.workers
