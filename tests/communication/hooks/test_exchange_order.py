"""Exchanges of several collectives on real ranks, beside each other and beside other exchanges."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn

from communication.espresso.decision_tree import gpu_options
from communication.espresso.options import Level, Routine, option_code
from communication.hooks.codecs.identity import Identity
from communication.hooks.exchange_order import InOrder
from communication.hooks.feedback import ErrorFeedback
from communication.hooks.fusion import FusedGradients
from communication.hooks.groups import PlacementGroups, steps_of
from communication.profiles.placement import PlacementShape
from tests.communication.hooks.ranks import run_on_ranks

SHAPE = PlacementShape(1, 2)
TWO_STEPS = next(
    option
    for option in gpu_options()
    if option_code(option).startswith("Comp/encode/gpu Comm1_c/all-to-all/flat")
)


class _Slow(Identity):
    """Encodes late on the first rank, so that it lags behind the other in every exchange."""

    def encode(self, values: Tensor, seed: int) -> Tensor:
        if dist.get_rank() == 0:
            time.sleep(0.2)
        return super().encode(values, seed)


def agreed_beside_exchanges() -> list[Any]:
    """Return gradients of layers that both ranks, the first and none use; ranks agree on these during
    exchanges."""
    groups = PlacementGroups.open(SHAPE)
    layers = nn.ModuleList(nn.Linear(40, 1, bias=False) for _ in range(3))
    synchroniser = FusedGradients(
        dict(layers.named_parameters()),
        (1, 2, 3),
        [TWO_STEPS] * 3,
        ErrorFeedback(_Slow()),
        groups,
        plan_digest="0" * 64,
    )
    used = layers[:2] if dist.get_rank() == 0 else layers[:1]
    sum(layer(torch.ones(40)).sum() for layer in used).backward()
    # As DDP does at the end of a backward pass, in the generation's own group.
    dist.all_reduce(torch.ones(7))
    synchroniser.after_backward()
    synchroniser.close()
    groups.close()
    return [None if layer.weight.grad is None else layer.weight.grad.unique().tolist() for layer in layers]


def in_uneven_company() -> int:
    """Exchange among all ranks, some of which have been in other groups before."""
    first = dist.new_group([0], use_local_synchronization=True) if dist.get_rank() == 0 else None
    groups = PlacementGroups.open(SHAPE)
    agreed = torch.tensor([1 + dist.get_rank()])
    dist.all_reduce(agreed, group=groups.by_step[Level.FLAT, False])
    groups.close()
    assert (first is None) == (dist.get_rank() == 1)
    return int(agreed)


class _Never:
    """A collective that has ended, or that waits for an event."""

    def __init__(self, event: threading.Event | None = None) -> None:
        self._event = event

    def wait(self) -> None:
        assert self._event is None or self._event.wait(600)


def passing(notes: list[str], name: str, works: list[_Never]) -> Iterator[Any]:
    for number, work in enumerate(works):
        notes.append(f"{name}{number}")
        yield work


def test_other_collectives_do_not_mix_with_ordered_exchanges() -> None:
    for gradients in run_on_ranks(2, agreed_beside_exchanges):
        assert gradients == [[1.0], [0.5], [0.0]]


def test_ranks_with_different_earlier_groups_still_meet() -> None:
    assert run_on_ranks(2, in_uneven_company) == [3, 3]


def test_exchanges_within_and_between_servers_overlap_in_order() -> None:
    notes: list[str] = []
    order, arrived = InOrder(torch.device("cpu")), threading.Event()
    channels: Any = [object(), object()]
    order.add(passing(notes, "a", [_Never(), _Never(arrived)]), channels)
    order.add(passing(notes, "b", [_Never(), _Never()]), channels)
    while len(notes) < 3:
        time.sleep(0.001)
    assert notes[:1] == ["a0"]
    assert set(notes) == {"a0", "a1", "b0"}, "and the first is not overtaken"
    arrived.set()
    order.wait()
    order.close()
    assert notes.index("b1") == 3


def test_no_exchange_begins_after_a_failure() -> None:
    def failing() -> Iterator[Any]:
        yield _Never()
        raise RuntimeError("a peer is gone")

    notes: list[str] = []
    order = InOrder(torch.device("cpu"))
    channels: Any = [object(), object()]
    order.add(failing(), channels)
    with pytest.raises(RuntimeError, match="a peer is gone"):
        order.wait()
    order.add(passing(notes, "b", [_Never()]), channels[:1])
    with pytest.raises(RuntimeError, match="a peer is gone"):
        order.wait()
    order.close()
    assert notes == []


def test_process_groups_are_created_only_for_used_steps() -> None:
    options = [
        option for option in gpu_options() if all(step.routine is not Routine.BROADCAST for step in option)
    ]
    assert steps_of([TWO_STEPS], PlacementShape(2, 2)) == {(Level.FLAT, False), (Level.FLAT, True)}
    assert len(steps_of(options, PlacementShape(2, 2))) == 6
    assert steps_of(options, PlacementShape(1, 1)) == set()
