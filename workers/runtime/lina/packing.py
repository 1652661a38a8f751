"""Measures iterations and lets the packing controller decide, alike on all ranks (Lina 4.4, step T4)."""

from __future__ import annotations

import time
from collections.abc import Iterable, Sequence

import torch
import torch.distributed as dist
from torch import nn
from torch.optim import Optimizer

from moe.lina.packing import ExpertPacking, PackingController, PackingDecision, StepTimes
from workers.runtime.emulation.emulated_network import EmulatedGroup
from workers.runtime.lina.exchange import PipelinedExchange

#: Number of measurements that are exchanged for the controller.
_MEASURES = 3


class RuntimePacking:
    """The packing of all spread layers of a model.

    Attributes:
        controller: makes the decisions; its packing is that of the largest layer.
    """

    def __init__(
        self,
        layers: Sequence[int],
        ranks: int,
        factor: int,
        group: dist.ProcessGroup,
        expert_memory: ExpertMemory,
    ) -> None:
        """Begin with a packing factor.

        Args:
            layers: number of experts of each spread layer.
            group: a group without other use between iterations.
        """
        self._group = group
        self._memory = expert_memory
        self._layers, self._ranks = layers, ranks
        self.controller = PackingController(ExpertPacking(max(layers), ranks, factor), self._fits)
        self._began_at = time.monotonic()

    def begin(self) -> None:
        """Begin an iteration."""
        self._began_at = time.monotonic()

    def end(self, iteration: int, exchanges: Iterable[PipelinedExchange]) -> PackingDecision | None:
        """End an iteration's passes. Return the decision, the same on all ranks, or None."""
        taken = [exchange.take_times() for exchange in exchanges]
        if not self.controller.may_change:
            return None
        experts = [seconds() for times in taken for seconds in times.experts]
        all_to_alls = [pending.seconds for times in taken for pending in times.all_to_all]
        own = [_mean(experts), _mean(all_to_alls), time.monotonic() - self._began_at]
        means = self._sum(own) / self._ranks
        return self.controller.after_step(iteration, StepTimes(*means.tolist()))

    def _fits(self, packing: ExpertPacking) -> bool:
        """Return whether all ranks have memory for their experts; all ranks call this together."""
        packings = [ExpertPacking(experts, self._ranks, packing.factor) for experts in self._layers]
        hosted = [[len(one.experts_of(rank)) for one in packings] for rank in range(self._ranks)]
        lacking = 0.0 if self._memory.has_room_for(hosted[dist.get_rank(self._group)]) else 1.0
        return not self._sum([lacking, 0.0, 0.0])[0].item()

    def _sum(self, numbers: Sequence[float]) -> torch.Tensor:
        assert len(numbers) == _MEASURES
        total = torch.tensor(numbers, dtype=torch.float64)
        if isinstance(self._group, EmulatedGroup):
            self._group.bookkeeping(total).wait()
            return total
        if dist.get_backend(self._group) == "nccl":
            total = total.cuda()
        dist.all_reduce(total, group=self._group)
        return total.cpu()


class ExpertMemory:
    """Memory of experts on this rank, with their optimizer states."""

    def __init__(
        self, layers: Sequence[Sequence[nn.Module]], optimizer: Optimizer, limit_bytes: float | None
    ) -> None:
        """Watch the experts of the spread layers.

        Args:
            layers: experts of each layer.
            limit_bytes: memory limit for a rank's experts; None: no limit.
        """
        self._layers, self._optimizer, self._limit_bytes = layers, optimizer, limit_bytes

    def has_room_for(self, hosted: Sequence[int]) -> bool:
        """Return whether the experts fit.

        Each counts as the parameters, gradients and optimizer states of this rank's largest expert of the
        layer.

        Args:
            hosted: number of experts of each layer.
        """
        if self._limit_bytes is None:
            return True
        needed = sum(
            number * max(self._expert_bytes(expert) for expert in experts)
            for number, experts in zip(hosted, self._layers, strict=True)
        )
        return needed <= self._limit_bytes

    def _expert_bytes(self, expert: nn.Module) -> int:
        total = 0
        for parameter in expert.parameters():
            size = parameter.numel() * parameter.element_size()
            kept = self._optimizer.state.get(parameter, {}).values()
            total += 2 * size + sum(each.nbytes for each in kept if isinstance(each, torch.Tensor))
        return total


def _mean(numbers: Sequence[float]) -> float:
    return sum(numbers) / len(numbers) if numbers else 0.0
