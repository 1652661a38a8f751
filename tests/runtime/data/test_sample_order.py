"""The order of samples depends only on the seed, not on the number of workers."""

from __future__ import annotations

import gc
from multiprocessing import active_children

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.runtime.data.batches import BatchLoader
from workers.runtime.data.sample_order import SampleOrder, chain_digest, largest_local_batch, local_slice


@given(batch=st.integers(1, 300), world_size=st.integers(1, 40))
def test_the_shares_of_all_ranks_make_up_the_global_batch(batch: int, world_size: int) -> None:
    slices = [local_slice(batch, rank, world_size) for rank in range(world_size)]
    assert [place for first, last in slices for place in range(first, last)] == list(range(batch))
    sizes = [last - first for first, last in slices]
    assert max(sizes) - min(sizes) <= 1
    assert max(sizes) == largest_local_batch(batch, world_size)


@given(size=st.integers(1, 50), batch=st.integers(1, 70), seed=st.integers(0, 2**40))
def test_every_epoch_holds_every_sample_once(size: int, batch: int, seed: int) -> None:
    order = SampleOrder(size, batch, seed)
    epochs = 3
    iterations = -(-epochs * size // batch)
    seen = torch.cat([order.global_batch(iteration) for iteration in range(iterations)])
    for epoch in range(epochs):
        assert sorted(seen[epoch * size : (epoch + 1) * size].tolist()) == list(range(size))


def test_a_batch_can_be_asked_for_without_those_before_it() -> None:
    walked, jumped = SampleOrder(37, 10, seed=5), SampleOrder(37, 10, seed=5)
    batches = [walked.global_batch(iteration).tolist() for iteration in range(20)]
    assert jumped.global_batch(19).tolist() == batches[19]
    assert SampleOrder(37, 10, seed=6).global_batch(19).tolist() != batches[19]


def test_the_digest_tells_orders_apart() -> None:
    first, second = torch.tensor([1, 2]), torch.tensor([3, 4])
    assert chain_digest(chain_digest("", first), second) != chain_digest(chain_digest("", second), first)


class _Noise(torch.utils.data.Dataset[torch.Tensor]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> torch.Tensor:
        return index + torch.rand(())


def _samples(world_size: int, data_workers: int = 0) -> list[float]:
    """Return all samples of iterations 3 and 4, as the ranks of a generation load them."""
    loaders = [
        BatchLoader(
            _Noise(),
            torch.stack,
            SampleOrder(20, 8, seed=1),
            rank=rank,
            world_size=world_size,
            device=torch.device("cpu"),
            data_workers=data_workers,
        )
        for rank in range(world_size)
    ]
    return [
        value
        for iteration in (3, 4)
        for loader in loaders
        if (batch := loader.load(iteration)).size
        for value in batch.content.tolist()
    ]


@pytest.mark.parametrize("world_size", [2, 3, 8, 11])
def test_a_samples_randomness_does_not_depend_on_its_loader(world_size: int) -> None:
    assert _samples(world_size) == _samples(1)


def test_prefetching_processes_give_the_same_samples() -> None:
    assert _samples(1, data_workers=2) == _samples(1)


def test_prefetching_processes_end_with_their_loader() -> None:
    others = set(active_children())
    order = SampleOrder(20, 8, seed=1)
    loader = BatchLoader(
        _Noise(), torch.stack, order, rank=0, world_size=1, device=torch.device("cpu"), data_workers=2
    )
    loader.load(0)
    processes = set(active_children()) - others
    assert len(processes) == 2
    gc.disable()
    try:
        del loader
        assert not any(process.is_alive() for process in processes)
    finally:
        gc.enable()


def test_weights_of_local_batches_average_to_one() -> None:
    def loader(rank: int) -> BatchLoader:
        order = SampleOrder(20, 8, seed=1)
        return BatchLoader(_Noise(), torch.stack, order, rank=rank, world_size=3, device=torch.device("cpu"))

    weights = [loader(rank).load(0).weight for rank in range(3)]
    assert sum(weights) == pytest.approx(3)
    assert weights == pytest.approx([3 * 3 / 8, 3 * 3 / 8, 2 * 3 / 8])
