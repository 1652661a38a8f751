"""Expert parallelism: rows travel within a process group to the ranks that host their experts.

Each forward pass gathers the counts of all ranks, then does two all-to-alls of rows with uneven splits: to
the experts, and back. The backward pass does the same two in reverse. The code is the same for gloo and NCCL.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor

from punctual.moe.exchange import ComputeExpert, ExpertExchange, compute_experts
from punctual.moe.placement import ExpertPlacement

#: `GroupExchange.transfer`.
_Transfer = Callable[[Tensor, Tensor], Tensor]


def untimed(_groups: Sequence[dist.ProcessGroup | None], _sent_bytes: int) -> AbstractContextManager[Any]:
    """Measure nothing."""
    return nullcontext()


class GroupExchange(ExpertExchange):
    """Sends rows to the ranks of a process group by an expert placement.

    Let no other collective use the same group during a backward pass: ranks may launch them in another order.

    Attributes:
        placement: which ranks host which experts.
        timer: opened around each all-to-all of rows, with the groups in which it happens, one after the
            other, and the bytes that this rank gives.
    """

    def __init__(self, placement: ExpertPlacement, group: dist.ProcessGroup | None = None) -> None:
        """Take a group, the default one if None.

        Raises:
            ValueError: the placement is for another number of ranks.
        """
        ranks = dist.get_world_size(group)
        if placement.ranks != ranks:
            raise ValueError(f"the placement is for {placement.ranks} ranks; the group has {ranks}.")
        self.share = 1 / ranks
        self.timer: Callable[[Sequence[dist.ProcessGroup | None], int], AbstractContextManager[Any]] = untimed
        self.placement = placement
        self._group = group
        self._rank: int = dist.get_rank(group)
        self._routes = _Routes.of(placement, self._rank)

    @property
    def rank(self) -> int:
        """Return this rank's number in the group."""
        return self._rank

    def gather(self, numbers: Tensor) -> Tensor:
        """Gather the numbers of all ranks in one small collective."""
        gathered = [torch.empty_like(numbers) for _ in range(dist.get_world_size(self._group))]
        dist.all_gather(gathered, numbers, group=self._group)
        return torch.stack(gathered).cpu()

    def exchange(self, rows: Tensor, counts: Tensor, compute: ComputeExpert) -> Tensor:
        """Send rows to their hosts, compute the hosted experts, send the outputs back."""
        routes = self._routes
        if routes.is_local:
            return compute_experts(rows, counts[self._rank], compute)
        split = Split.of(routes, counts, self._rank)
        own_counts = counts[self._rank].tolist()
        leaving = _reorder(rows, own_counts, routes.leaving)
        arrived = self._all_to_all(leaving, split.between)
        outputs = self._compute_hosted(arrived, split.arriving, compute)
        returned = self._all_to_all(outputs, split.between.T)
        return _restore_order(returned, own_counts, routes.leaving)

    def _compute_hosted(self, arrived: Tensor, arriving: Tensor, compute: ComputeExpert) -> Tensor:
        """Compute the hosted experts on rows that are sorted by source rank, then by expert.

        Args:
            arriving: (ranks, hosted experts): number of rows.
        """
        hosted = self._routes.hosted
        if not hosted:
            return arrived
        pieces = arrived.split(arriving.flatten().tolist())
        outputs = []
        for place, expert in enumerate(hosted):
            expert_rows = torch.cat(pieces[place :: len(hosted)])
            outputs.append(compute(expert, expert_rows).split(arriving[:, place].tolist()))
        return torch.cat([piece for from_rank in zip(*outputs, strict=True) for piece in from_rank])

    def _all_to_all(self, rows: Tensor, between: Tensor) -> Tensor:
        # Every rank takes part in the backward pass, also if its own rows need no gradient.
        if torch.is_grad_enabled() and not rows.requires_grad:
            rows = rows.detach().requires_grad_()
        exchanged: Tensor = _AllToAll.apply(rows, self.transfer, between)
        return exchanged

    def transfer(self, rows: Tensor, between: Tensor) -> Tensor:
        """Return the rows that this rank receives, by source rank, in one all-to-all.

        Args:
            rows: (rows, width), by destination rank.
            between: (sources, destinations): number of rows, on the host.
        """
        sent, received = between[self._rank].tolist(), between[:, self._rank].tolist()
        with self.timer((self._group,), rows.nbytes):
            return all_to_all(rows, sent, received, self._group)


def all_to_all(rows: Tensor, sent: list[int], received: list[int], group: dist.ProcessGroup | None) -> Tensor:
    """Return the rows that this rank receives, by source rank.

    Args:
        rows: (rows, width), by destination rank.
        sent, received: number of rows to and from each rank.
    """
    found = rows.new_empty(sum(received), rows.shape[1])
    dist.all_to_all_single(found, rows.contiguous(), received, sent, group=group)
    return found


class _AllToAll(torch.autograd.Function):
    """An uneven all-to-all forward, and the reverse one backward."""

    @staticmethod
    def forward(ctx: Any, rows: Tensor, transfer: _Transfer, between: Tensor) -> Tensor:
        """Return the rows that this rank receives, by source rank."""
        ctx.transfer, ctx.between = transfer, between
        return transfer(rows, between)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None]:
        """Return the gradients of the rows that this rank sent."""
        return ctx.transfer(gradients[0], ctx.between.T), None, None


@dataclass(frozen=True)
class _Routes:
    """The routes of one rank under a placement.

    Attributes:
        hosted: ids of the experts that the rank hosts.
        destinations: (ranks, experts): where each rank sends its rows of each expert.
        leaving: ids of all experts, sorted by the rank to which this rank sends their rows.
        is_local: whether every rank hosts every expert.
    """

    hosted: tuple[int, ...]
    destinations: Tensor
    leaving: list[int]
    is_local: bool

    @classmethod
    def of(cls, placement: ExpertPlacement, rank: int) -> _Routes:
        experts = range(len(placement.hosts))
        destinations = torch.tensor(
            [[placement.destination(source, each) for each in experts] for source in range(placement.ranks)]
        )
        own = destinations[rank].tolist()
        is_local = all(len(hosts) == placement.ranks for hosts in placement.hosts)
        return cls(placement.hosted_by(rank), destinations, sorted(experts, key=own.__getitem__), is_local)


@dataclass(frozen=True)
class Split:
    """How the rows of one pass split.

    Attributes:
        rank: this rank.
        between: (sources, destinations): number of rows.
        arriving: (ranks, hosted experts): number of rows that come from each rank.
    """

    rank: int
    between: Tensor
    arriving: Tensor

    @classmethod
    def of(cls, routes: _Routes, counts: Tensor, rank: int) -> Split:
        """Split the rows (ranks, experts) of all ranks."""
        between = counts.new_zeros(len(counts), len(counts)).scatter_add_(1, routes.destinations, counts)
        arriving = (counts * (routes.destinations == rank))[:, list(routes.hosted)]
        return cls(rank, between, arriving)

    @property
    def sent(self) -> list[int]:
        """Number of rows to each rank."""
        return list(self.between[self.rank].tolist())

    @property
    def received(self) -> list[int]:
        """Number of rows from each rank."""
        return list(self.between[:, self.rank].tolist())


def _reorder(rows: Tensor, counts: Sequence[int], order: Sequence[int]) -> Tensor:
    """Sort rows that are sorted by expert by another order of experts."""
    parts = rows.split(list(counts))
    return torch.cat([parts[expert] for expert in order])


def _restore_order(rows: Tensor, counts: Sequence[int], order: Sequence[int]) -> Tensor:
    """Undo `_reorder`."""
    parts = dict(zip(order, rows.split([counts[expert] for expert in order]), strict=True))
    return torch.cat([parts[expert] for expert in range(len(order))])
