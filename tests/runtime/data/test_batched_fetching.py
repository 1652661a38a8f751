"""Data sets that fetch several samples at once give each sample the random numbers that it gets alone."""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.utils.data import ConcatDataset, Dataset, Subset, default_collate

from workers.runtime.data.batches import BatchLoader
from workers.runtime.data.sample_order import SampleOrder
from workers.runtime.failures import WorkerFailureError


class _Noise(Dataset[Tensor]):
    def __len__(self) -> int:
        return 20

    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([index, torch.rand(()), random.random(), np.random.random()])  # noqa: NPY002


class _Batched(_Noise):
    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        return [self[index] for index in indices]


class _Wrapper(_Noise):
    """Forwards missing attributes, `__getitems__` included."""

    def __init__(self, inner: Dataset[Tensor]) -> None:
        self.inner = inner

    def __getitem__(self, index: int) -> Tensor:
        return -self.inner[index]

    def __getattr__(self, name: str) -> Any:
        return getattr(self.inner, name)


class _Joined(_Noise):
    """Returns a batch that is already joined."""

    def __getitems__(self, indices: list[int]) -> list[Tensor]:
        self.asked = getattr(self, "asked", 0) + 1
        return [torch.stack([self[index] for index in indices])]


class _JoinedWithoutNoise(_Joined):
    def __getitem__(self, index: int) -> Tensor:
        return torch.tensor([float(index)])


DATASETS: dict[str, Callable[[], Dataset[Tensor]]] = {
    "subset": lambda: Subset(_Noise(), range(20)),
    "subset of a subset": lambda: Subset(Subset(_Batched(), range(20)), range(20)),
    "concatenated": lambda: ConcatDataset([Subset(_Noise(), range(20))]),
    "its own": _Batched,
}


def _load(
    dataset: Dataset[Tensor],
    world_size: int,
    data_workers: int = 0,
    collate: Callable[[list[Any]], Any] = default_collate,
) -> Tensor:
    """Return all samples of iteration 3, as the ranks of a generation load them."""
    order = SampleOrder(20, 8, seed=1)
    loaders = [
        BatchLoader(
            dataset,
            collate,
            order,
            rank=rank,
            world_size=world_size,
            device=torch.device("cpu"),
            data_workers=data_workers,
        )
        for rank in range(world_size)
    ]
    return torch.cat([loader.load(3).content for loader in loaders])


@pytest.mark.parametrize("name", DATASETS)
def test_a_samples_random_numbers_do_not_depend_on_the_split(name: str) -> None:
    plain = _load(_Noise(), 1)
    for world_size in (1, 2, 3):
        assert torch.equal(_load(DATASETS[name](), world_size), plain)


def test_prefetching_processes_fetch_the_same_batches() -> None:
    assert torch.equal(_load(DATASETS["subset"](), 2, data_workers=1), _load(_Noise(), 1))


def test_batched_fetching_does_not_bypass_a_wrapper() -> None:
    assert torch.equal(_load(_Wrapper(_Batched()), 2), -_load(_Noise(), 1))


def test_batches_without_random_numbers_are_fetched_at_once() -> None:
    dataset = _JoinedWithoutNoise()
    joined = _load(dataset, 2, collate=lambda samples: samples[0])
    assert joined.flatten().tolist() == SampleOrder(20, 8, seed=1).global_batch(3).tolist()
    assert dataset.asked == 2


def test_random_numbers_in_joined_batches_are_refused() -> None:
    with pytest.raises(WorkerFailureError, match="draws random numbers and returned 1 for 8 indices"):
        _load(_Joined(), 1)


def test_collates_random_numbers_do_not_depend_on_the_last_sample() -> None:
    def draw(_samples: list[Tensor]) -> Tensor:
        return torch.rand(1)

    silent = Subset(torch.utils.data.TensorDataset(torch.arange(20.0)), range(20))
    assert torch.equal(_load(silent, 1, collate=draw), _load(_Noise(), 1, collate=draw))
