"""Gradients of tables as rows, averaged by real ranks that use the tables in different ways."""

from __future__ import annotations

from typing import cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from tests.communication.hooks.ranks import run_on_ranks
from workers.runtime.function.parts import TrainingParts
from workers.runtime.synchronisation.sparse import SparseSynchroniser


def averaged() -> tuple[list[Tensor], list[Tensor]]:
    """Return the averages of three tables' gradients, and the expected ones. The first table is used densely
    by the second rank alone, and not at all by the third; the others have different types."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    types = (torch.float32, torch.float32, torch.bfloat16)
    tables = [nn.Embedding(9, 2, sparse=True, dtype=dtype) for dtype in types]
    rows = torch.tensor([rank, rank, 5])
    loss = sum((rank + 1) * table(rows).float().sum() for table in tables[rank == 2 :])
    if rank == 1:
        loss = loss + tables[0].weight.sum()
    assert isinstance(loss, Tensor)
    loss.backward()
    expected = []
    for table in tables:
        own = table.weight.grad
        whole = torch.zeros(9, 2) if own is None else own.to_dense().float().clone()
        dist.all_reduce(whole)
        expected.append(whole / ranks)
    synchroniser = SparseSynchroniser({})
    synchroniser.wrap(cast("TrainingParts", None), None, {str(n): t.weight for n, t in enumerate(tables)})
    synchroniser.after_backward()
    found = [cast("Tensor", table.weight.grad).to_dense().float() for table in tables]
    return found, expected


def test_ranks_may_use_a_table_in_different_ways_and_types() -> None:
    for found, expected in run_on_ranks(3, averaged):
        for one, other in zip(found, expected, strict=True):
            torch.testing.assert_close(one, other, rtol=1e-2, atol=1e-2)
