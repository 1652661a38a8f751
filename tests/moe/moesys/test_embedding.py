"""Tables partitioned by columns: vector V7, and random instances against the whole table."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from moe.moesys.embedding import ColumnPartition, TableTraffic

Floats = NDArray[np.float64]


def partitioned_lookup(table: Floats, ids: list[NDArray[np.int64]]) -> list[Floats]:
    """Return the rows of each worker, exchanged as the workers do it."""
    columns = ColumnPartition(table.shape[1], len(ids))
    gathered = np.concatenate(ids)
    ends = np.cumsum([len(own) for own in ids])[:-1]
    shards = [table[:, slice(*columns.owned(worker))] for worker in range(columns.workers)]
    looked_up = [np.split(shard[gathered], ends) for shard in shards]
    return [
        np.concatenate([blocks[worker] for blocks in looked_up], axis=1) for worker in range(columns.workers)
    ]


def partitioned_gradient(rows: int, ids: list[NDArray[np.int64]], upstream: list[Floats]) -> list[Floats]:
    """Return the gradient of each worker's columns, averaged over workers."""
    columns = ColumnPartition(upstream[0].shape[1], len(ids))
    gathered = np.concatenate(ids)
    gradients = []
    for worker in range(columns.workers):
        received = np.concatenate([own[:, slice(*columns.owned(worker))] for own in upstream])
        shard = np.zeros((rows, columns.widths[worker]))
        np.add.at(shard, gathered, received)
        gradients.append(shard / columns.workers)
    return gradients


def test_v7_partitioned_lookup_and_gradient() -> None:
    table = np.arange(48, dtype=np.float64).reshape(6, 8)
    ids = [np.array(numbers) for numbers in ([1, 3], [0, 5], [2, 2], [4, 1])]
    for rows, row_ids in zip(partitioned_lookup(table, ids), ids, strict=True):
        assert (rows == table[row_ids]).all()
    upstream = [np.full((2, 8), worker + 1.0) for worker in range(4)]
    gradient = np.concatenate(partitioned_gradient(6, ids, upstream), axis=1)
    assert (gradient == np.array([0.5, 1.25, 1.5, 0.25, 1.0, 0.5])[:, None]).all()


@given(st.integers(1, 5), st.integers(0, 6), st.integers(1, 9), st.integers(0, 2**31))
def test_partitioned_tables_equal_whole_ones(workers: int, more_columns: int, rows: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    columns = workers + more_columns
    table = rng.integers(-9, 9, (rows, columns)).astype(float)
    ids = [rng.integers(0, rows, rng.integers(0, 5)) for _ in range(workers)]
    for looked_up, row_ids in zip(partitioned_lookup(table, ids), ids, strict=True):
        assert (looked_up == table[row_ids]).all()
    upstream = [rng.integers(-9, 9, (len(worker_ids), columns)).astype(float) for worker_ids in ids]
    whole = np.zeros_like(table)
    np.add.at(whole, np.concatenate(ids), np.concatenate(upstream))
    shards = partitioned_gradient(rows, ids, upstream)
    assert [shard.shape[1] for shard in shards] == list(ColumnPartition(columns, workers).widths)
    assert (np.concatenate(shards, axis=1) == whole / workers).all()


def test_few_lookups_send_less_of_a_partitioned_table() -> None:
    few = TableTraffic(50304, 4096, 8, 1024)
    assert few.partitioned_bytes < 0.05 * few.replicated_bytes
    many = TableTraffic(100, 64, 4, 1000)
    assert many.partitioned_bytes > many.replicated_bytes
    assert few.saved_memory_bytes == 16 * 50304 * 4096 * 7 / 8


def test_fewer_columns_than_workers_are_an_error() -> None:
    with pytest.raises(ValueError, match="columns"):
        ColumnPartition(3, 4)
