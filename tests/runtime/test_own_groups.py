"""A lost peer is detected by the runtime's own connections, whatever an error says."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.utils.data import Dataset

from workers.runtime import own_groups
from workers.runtime.data.batches import BatchLoader
from workers.runtime.data.sample_order import SampleOrder
from workers.runtime.failures import WorkerFailureError, blaming_the_function, is_peer_loss

#: Errors of users' code in words that collectives use too.
_OWN_ERRORS = [
    RuntimeError("no class called 'igloo' in labels.csv"),
    RuntimeError("NCCL is not a valid label"),
    RuntimeError("Connection closed by peer [10.0.0.7]:5432 while reading sample 17"),
    RuntimeError("[enforce fail at gloo/transport/tcp/pair.cc:553] socket closed"),
    ConnectionRefusedError(111, "Connection refused"),
    BrokenPipeError(32, "Broken pipe"),
    torch.AcceleratorError("CUDA error: unspecified launch failure, NCCL kernels included"),
    dist.DistBackendError("NCCL error in a group of the function's own"),
    dist.DistNetworkError("the function's own store cannot be reached"),
    KeyError("gloo"),
]


class _Rank:
    """A rank of a group of two within this process, which answers as the runtime's own groups do."""

    def __init__(self, carrier: Any) -> None:
        self.carrier = carrier

    def rank(self) -> int:
        return int(self.carrier.rank())

    def size(self) -> int:
        return int(self.carrier.size())


def pair_of_ranks() -> list[Any]:
    """Return both ranks of a gloo group in this process."""
    store = dist.HashStore()

    def join(rank: int) -> Any:
        return dist.ProcessGroupGloo(store, rank, 2, timedelta(seconds=60))

    with ThreadPoolExecutor(2) as threads:
        return list(threads.map(join, range(2)))


@pytest.fixture
def ranks() -> Iterator[list[Any]]:
    """Return both ranks of a group; the first one is the runtime's own."""
    pair = pair_of_ranks()
    own: Any = _Rank(pair[0])
    own_groups.own(own)
    yield pair
    own_groups.disown(own)


@pytest.mark.parametrize("error", _OWN_ERRORS, ids=lambda error: str(error)[:20])
@pytest.mark.parametrize("others_end", [False, True])
def test_a_functions_error_is_not_blamed_on_a_peer(
    ranks: list[Any], error: Exception, others_end: bool
) -> None:
    """Also if another rank has just raised it and ended."""
    if others_end:
        ranks.pop()
    with pytest.raises(WorkerFailureError) as caught, blaming_the_function("train()"):
        raise error
    assert caught.value.reason == "function_error"
    assert str(error) in caught.value.message or repr(error) in caught.value.message


def test_a_data_set_that_names_an_igloo_fails_the_function(ranks: list[Any]) -> None:
    class Labelled(Dataset[Any]):
        def __len__(self) -> int:
            return 64

        def __getitem__(self, index: int) -> Any:
            raise RuntimeError("no class called 'igloo' in labels.csv")

    loader = BatchLoader(
        Labelled(), list, SampleOrder(64, 16, 0), rank=0, world_size=2, device=torch.device("cpu")
    )
    with pytest.raises(WorkerFailureError) as caught:
        loader.load(0)
    assert caught.value.reason == "function_error"
    assert "no class called 'igloo' in labels.csv" in caught.value.message


def _in_a_collective(ranks: list[Any]) -> None:
    ranks[0].allreduce([torch.zeros(4)]).wait()


def test_a_compiled_function_of_torch_raises_its_callers_error(ranks: list[Any]) -> None:
    with pytest.raises(WorkerFailureError) as caught, blaming_the_function("train()"):
        torch.zeros(2) @ torch.zeros(3)
    assert caught.value.reason == "function_error"


def _caught_by_the_function(ranks: list[Any]) -> None:
    try:
        _in_a_collective(ranks)
    except RuntimeError as error:
        raise RuntimeError("the statistics could not be summed") from error


def _raised_again_by_the_function(ranks: list[Any]) -> None:
    try:
        _in_a_collective(ranks)
    except RuntimeError:
        raise


def _in_a_hook_of_the_backward_pass(ranks: list[Any]) -> None:
    weights = torch.zeros(3, requires_grad=True)
    weights.register_post_accumulate_grad_hook(lambda _: _in_a_collective(ranks))
    weights.sum().backward()


@pytest.mark.parametrize(
    "collective",
    [
        _in_a_collective,
        _caught_by_the_function,
        _raised_again_by_the_function,
        _in_a_hook_of_the_backward_pass,
    ],
)
def test_a_lost_peer_is_never_blamed_on_the_function(
    ranks: list[Any], collective: Callable[[list[Any]], None]
) -> None:
    ranks.pop()
    with pytest.raises(WorkerFailureError) as caught, blaming_the_function("train()"):
        collective(ranks)
    assert caught.value.reason == "peer_lost"


def test_a_functions_own_broken_group_is_a_function_error(ranks: list[Any]) -> None:
    others = pair_of_ranks()
    others.pop()
    with pytest.raises(RuntimeError) as caught:
        _in_a_collective(others)
    assert not is_peer_loss(caught.value)


def test_checking_for_lost_peers_leaves_later_collectives_intact(ranks: list[Any]) -> None:
    assert not own_groups.has_lost_a_peer()
    sums = [torch.ones(2), torch.ones(2)]
    works = [rank.allreduce([value]) for rank, value in zip(ranks, sums, strict=True)]
    for work in works:
        work.wait()
    assert [value.tolist() for value in sums] == [[2.0, 2.0]] * 2


def test_a_destroyed_group_is_not_checked() -> None:
    group: Any = SimpleNamespace(rank=lambda: 0, size=lambda: 2)
    own_groups.own(group)
    own_groups.disown(group)
    assert not own_groups.has_lost_a_peer()
