"""A batch of any usual shape reaches the device: PyTorch's `meta`, which needs no GPU and differs from the
CPU."""

from __future__ import annotations

from collections import OrderedDict, UserDict, namedtuple
from dataclasses import dataclass, field
from types import MappingProxyType
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.utils.rnn import pack_sequence

from workers.runtime.data.batches import move_to

META = torch.device("meta")
Pair = namedtuple("Pair", "left right")


def tensor() -> Tensor:
    return torch.zeros(2)


@dataclass(frozen=True)
class Encoded:
    """A return value of a user's collate function; one field is not a constructor argument."""

    tokens: Tensor
    names: list[str]
    mask: Tensor = field(init=False, default_factory=tensor)


class BatchOfATokenizer(UserDict[str, Tensor]):
    """Like the tokenizers of transformers: a mapping that is not a dict and has its own `to`."""

    def to(self, device: torch.device) -> BatchOfATokenizer:
        return BatchOfATokenizer({name: value.to(device) for name, value in self.items()})


@pytest.mark.parametrize(
    "batch",
    [
        {"a": tensor(), "b": [tensor(), {"c": tensor()}]},
        UserDict(a=tensor()),
        OrderedDict(a=tensor()),
        MappingProxyType({"a": tensor()}),
        BatchOfATokenizer(a=tensor()),
        Pair(tensor(), [tensor()]),
        (tensor(), "text", 3),
        Encoded(tensor(), ["x"]),
        {"nested": UserDict(a=Pair(tensor(), Encoded(tensor(), [])))},
    ],
    ids=lambda batch: type(batch).__name__,
)
def test_moving_a_batch_moves_every_tensor_and_keeps_its_type(batch: Any) -> None:
    moved = move_to(batch, META)
    assert devices_in(moved) == {"meta"}
    if not isinstance(batch, MappingProxyType):
        assert type(moved) is type(batch)
    assert devices_in(batch) == {"cpu"}, "the data set's own tensors stay where they are"


def test_a_batchs_own_to_method_is_used() -> None:
    packed = move_to([pack_sequence([tensor()])], META)[0]
    assert packed.data.device == META


def devices_in(batch: Any) -> set[str]:
    if isinstance(batch, Tensor):
        return {batch.device.type}
    if isinstance(batch, Encoded):
        return devices_in(list(vars(batch).values()))
    if hasattr(batch, "values"):
        batch = list(batch.values())
    return set().union(*map(devices_in, batch)) if isinstance(batch, list | tuple) else set()
