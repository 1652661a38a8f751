"""Lets mixture-of-experts layers count the tokens of all ranks, so the loss does not depend on their number.

Every rank has all experts. Their gradients are averaged like any others, and no row travels.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from communication.hooks.groups import open_group
from punctual.moe import ExpertPlacement, GroupExchange, LocalExchange, MoELayer, moe_layers
from workers.links.rates import EXPERTS
from workers.runtime import own_groups
from workers.runtime.emulated_network import EmulatedGroup
from workers.runtime.parts import TrainingParts
from workers.runtime.synchronisation.interface import GradientSynchroniser


class ExpertParallelSynchroniser(GradientSynchroniser):
    """Takes no parameter; gives each `MoELayer` an exchange among the ranks."""

    def __init__(self, choices: Mapping[str, Any]) -> None:
        if choices:
            raise ValueError(f"there is nothing to choose, but it was given {sorted(choices)}")
        self._layers: list[MoELayer] = []
        self._group: dist.ProcessGroup | None = None

    def takes(self, module: nn.Module, left: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return none."""
        return {}

    def wrap(
        self,
        parts: TrainingParts,
        group: dist.ProcessGroup | None,
        parameters: Mapping[str, nn.Parameter],
    ) -> None:
        """Connect the layers in a group of their own: layers may run in the backward pass too, if they are
        checkpointed, while DDP sends gradients."""
        ranks = dist.get_world_size(group)
        self._layers = list(moe_layers(parts.module).values())
        if ranks == 1 or not self._layers:
            return
        self._group = open_group(EXPERTS, group)
        own_groups.own(self._group)
        for layer in self._layers:
            hosts = (tuple(range(ranks)),) * len(layer.experts)
            layer.exchange = RuntimeExchange(ExpertPlacement(hosts, ranks), self._group)

    def begin_alike(self) -> None:
        """It has no values."""

    def after_backward(self) -> None:
        """It has no gradients."""

    def state(self) -> dict[str, Tensor]:
        """It keeps nothing."""
        return {}

    def load_state(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """It kept nothing."""

    def close(self) -> None:
        """Disconnect the layers; take the group down."""
        for layer in self._layers:
            layer.exchange = LocalExchange()
        if self._group is not None:
            own_groups.disown(self._group)
            dist.destroy_process_group(self._group)


class RuntimeExchange(GroupExchange):
    """An exchange whose counts travel beside emulated links, as whatever the platform itself has to tell."""

    def __init__(self, placement: ExpertPlacement, group: dist.ProcessGroup) -> None:
        super().__init__(placement, group)
        self._emulated = group if isinstance(group, EmulatedGroup) else None

    def gather(self, numbers: Tensor) -> Tensor:
        """Gather the numbers of all ranks."""
        if self._emulated is None:
            return super().gather(numbers)
        gathered = numbers.new_zeros(self._emulated.size(), len(numbers))
        gathered[self.rank] = numbers
        self._emulated.bookkeeping(gathered).wait()
        return gathered
