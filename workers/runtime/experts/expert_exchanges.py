"""Exchanges that the runtime gives to mixture-of-experts layers."""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor

from punctual.moe import ExpertPlacement, GroupExchange, LocalExchange
from punctual.moe.exchange import ComputeExpert
from workers.runtime.emulation.emulated_network import EmulatedGroup


class RuntimeExchange(GroupExchange):
    """An exchange that sends its counts outside the emulated links, like all bookkeeping of the platform."""

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


class RehearsedExchange(LocalExchange):
    """Computes this rank's own rows with this rank's experts."""

    def __init__(self, hosted: Sequence[int]) -> None:
        self._hosted = hosted

    def exchange(self, rows: Tensor, counts: Tensor, compute: ComputeExpert) -> Tensor:
        """Divide the rows evenly among the experts."""
        if not self._hosted:
            return rows
        parts = rows.tensor_split(len(self._hosted))
        return torch.cat([compute(expert, part) for expert, part in zip(self._hosted, parts, strict=True)])
