"""Collectives over emulated links return the same as torch.distributed's, on any number of ranks."""

from __future__ import annotations

import queue
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from workers.runtime.emulation import emulated_collectives as collectives
from workers.runtime.emulation.emulated_collectives import Message

Mail = dict[tuple[int, int, int], "queue.SimpleQueue[Tensor]"]


class Rank:
    """A rank whose messages pass through queues."""

    def __init__(self, rank: int, size: int, mail: Mail, latency_bytes: float) -> None:
        self.latency_bytes = latency_bytes
        self.sent_bytes = 0
        self._rank, self._size, self._mail = rank, size, mail

    def rank(self) -> int:
        return self._rank

    def size(self) -> int:
        return self._size

    def exchange(self, sent: Sequence[Message], received: Sequence[Message], traffic: str, step: int) -> None:
        for message in sent:
            assert message.tensor.is_contiguous()
            self.sent_bytes += message.tensor.nbytes
            self._mail[self._rank, message.peer, step].put(message.tensor.clone())
        for message in received:
            message.tensor.copy_(self._mail[message.peer, self._rank, step].get(timeout=60))


def _on_all_ranks(
    size: int, work: Callable[[Rank], Tensor], latency_bytes: float = 0.0
) -> tuple[list[Tensor], list[Rank]]:
    steps = range(2 * size + 1)
    mail: Mail = {
        (sender, receiver, step): queue.SimpleQueue()
        for sender in range(size)
        for receiver in range(size)
        for step in steps
    }
    ranks = [Rank(rank, size, mail, latency_bytes) for rank in range(size)]
    with ThreadPoolExecutor(size) as threads:
        return list(threads.map(work, ranks)), ranks


def _own(rank: int, *shape: int) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(rank))


@given(st.integers(1, 9), st.integers(1, 40), st.sampled_from([0.0, 1e9]))
def test_all_reduce_sums_to_the_same_bits_everywhere(size: int, count: int, latency_bytes: float) -> None:
    def work(group: Rank) -> Tensor:
        tensor = _own(group.rank(), count)
        collectives.all_reduce(group, tensor, collectives.reduction(dist.ReduceOp.SUM))
        return tensor

    results, ranks = _on_all_ranks(size, work, latency_bytes)
    torch.testing.assert_close(results[0], sum(_own(rank, count) for rank in range(size)))
    assert all(torch.equal(results[0], other) for other in results)
    if size in (2, 4, 8) and not count % size and not latency_bytes:
        assert {group.sent_bytes for group in ranks} == {2 * (size - 1) * count * 4 // size}


@pytest.mark.parametrize("size", [2, 3, 4, 5, 8])
@pytest.mark.parametrize("root", [0, 1])
def test_broadcast_gives_all_the_roots_tensor(size: int, root: int) -> None:
    def work(group: Rank) -> Tensor:
        tensor = _own(group.rank(), 3, 5).T  # not contiguous
        collectives.broadcast(group, tensor, root)
        return tensor

    results, _ranks = _on_all_ranks(size, work)
    assert all(torch.equal(result, _own(root, 3, 5).T) for result in results)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 6, 8])
def test_all_gather_returns_all_tensors_in_rank_order(size: int) -> None:
    def work(group: Rank) -> Tensor:
        outputs = [torch.empty(2, 3) for _ in range(size)]
        collectives.all_gather(group, outputs, _own(group.rank(), 2, 3))
        return torch.stack(outputs)

    results, _ranks = _on_all_ranks(size, work)
    expected = torch.stack([_own(rank, 2, 3) for rank in range(size)])
    assert all(torch.equal(result, expected) for result in results)


@pytest.mark.parametrize("size", [1, 2, 3, 4])
def test_all_to_all_transposes(size: int) -> None:
    def work(group: Rank) -> Tensor:
        inputs = list(_own(group.rank(), size, 4))
        outputs = [torch.empty(4) for _ in range(size)]
        collectives.all_to_all(group, outputs, inputs)
        return torch.stack(outputs)

    results, _ranks = _on_all_ranks(size, work)
    for rank, result in enumerate(results):
        assert torch.equal(result, torch.stack([_own(sender, size, 4)[rank] for sender in range(size)]))


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 8])
def test_reduce_scatter_gives_each_rank_its_part_of_the_sum(size: int) -> None:
    def work(group: Rank) -> Tensor:
        part = torch.empty(3)
        whole = _own(group.rank(), 3 * size)
        collectives.reduce_scatter(group, part, whole, collectives.reduction(dist.ReduceOp.SUM))
        assert torch.equal(whole, _own(group.rank(), 3 * size))
        return part

    results, ranks = _on_all_ranks(size, work)
    torch.testing.assert_close(torch.cat(results), sum(_own(rank, 3 * size) for rank in range(size)))
    assert {group.sent_bytes for group in ranks} == {(size - 1) * 3 * 4}


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 6, 8, 9])
@pytest.mark.parametrize("root", [0, 2])
def test_a_reduction_to_a_root_reaches_it(size: int, root: int) -> None:
    def work(group: Rank) -> Tensor:
        tensor = _own(group.rank(), 3, 5).T  # not contiguous
        collectives.reduce_to_root(group, tensor, collectives.reduction(dist.ReduceOp.SUM), root % size)
        return tensor

    results, ranks = _on_all_ranks(size, work)
    torch.testing.assert_close(results[root % size], sum(_own(rank, 3, 5).T for rank in range(size)))
    assert sum(group.sent_bytes for group in ranks) == (size - 1) * 15 * 4


@pytest.mark.parametrize("size", [1, 2, 3, 5])
@pytest.mark.parametrize("root", [0, 1])
def test_gather_returns_all_tensors_to_the_root_in_rank_order(size: int, root: int) -> None:
    def work(group: Rank) -> Tensor:
        outputs = [torch.empty(3, 2) for _ in range(size)] if group.rank() == root % size else []
        collectives.gather(group, outputs, _own(group.rank(), 2, 3).T, root % size)
        return torch.stack(outputs) if outputs else torch.empty(0)

    results, _ranks = _on_all_ranks(size, work)
    assert torch.equal(results[root % size], torch.stack([_own(rank, 2, 3).T for rank in range(size)]))
    assert sum(map(len, results)) == size


@pytest.mark.parametrize(
    ("operation", "expected"),
    [(dist.ReduceOp.MIN, 1.0), (dist.ReduceOp.MAX, 4.0), (dist.ReduceOp.PRODUCT, 24.0)],
)
def test_reductions_other_than_sums_are_supported(operation: dist.ReduceOp, expected: float) -> None:
    def work(group: Rank) -> Tensor:
        tensor = torch.tensor([group.rank() + 1.0])
        collectives.all_reduce(group, tensor, collectives.reduction(operation))
        return tensor

    results, _ranks = _on_all_ranks(4, work)
    assert [float(result) for result in results] == [expected] * 4


def test_a_reduction_that_training_does_not_use_is_refused() -> None:
    with pytest.raises(NotImplementedError):
        collectives.reduction(dist.ReduceOp.BXOR)
