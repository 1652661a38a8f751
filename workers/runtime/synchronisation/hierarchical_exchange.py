"""Exchanges of expert rows between servers in two phases: within servers, then along rails (MoESys).

All ranks know the numbers of rows between all pairs of ranks. Each predicts both times and makes the same
choice, so no count is sent twice. The result equals that of the flat exchange bit for bit.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.distributed as dist
from torch import Tensor

from communication.hooks.groups import open_subgroup
from emulated_links.rates import EXPERTS
from moe.moesys.all_to_all import Algorithm, AllToAll, AllToAllChoice, LinkRates, choose_all_to_all
from moe.moesys.hierarchical_exchange import exchange_steps
from punctual.moe import ExpertPlacement
from punctual.moe.group_exchange import all_to_all
from workers.runtime.experts.expert_exchanges import RuntimeExchange
from workers.runtime.topology import RankGrid, Topology


@dataclass(frozen=True)
class RailGroups:
    """This rank's groups, and the rates with which exchange times are predicted.

    Attributes:
        within: ranks of its server.
        between: ranks of its rail, one on each server.
        source: origin of the rates, as in `Topology`.
    """

    grid: RankGrid
    within: dist.ProcessGroup
    between: dist.ProcessGroup
    rates: LinkRates
    source: str

    @classmethod
    def open(cls, topology: Topology, group: dist.ProcessGroup | None) -> RailGroups | None:
        """Make the groups; None if servers have no rails. All ranks of the group call this together."""
        ranks = dist.get_process_group_ranks(dist.group.WORLD if group is None else group)
        grid = topology.grid(ranks)
        if grid is None:
            return None
        within = [open_subgroup(EXPERTS, row, group) for row in grid.rows]
        between = [open_subgroup(EXPERTS, rail, group) for rail in grid.rails]
        (own_within,) = (each for each in within if each is not None)
        (own_between,) = (each for each in between if each is not None)
        return cls(grid, own_within, own_between, topology.rates, topology.source)

    @property
    def groups(self) -> tuple[dist.ProcessGroup, dist.ProcessGroup]:
        """Both groups, in the order of the phases."""
        return self.within, self.between


class HierarchicalExchange(RuntimeExchange):
    """Sends rows in one all-to-all or in two phases, whichever is predicted to be faster.

    Attributes:
        choice: both predictions for the last all-to-all; None before the first.
    """

    def __init__(self, placement: ExpertPlacement, group: dist.ProcessGroup, rails: RailGroups) -> None:
        super().__init__(placement, group)
        self.choice: AllToAllChoice | None = None
        self._rails = rails

    @property
    def rates_source(self) -> str:
        """Origin of the rates of predictions."""
        return self._rails.source

    def transfer(self, rows: Tensor, between: Tensor) -> Tensor:
        """Return the rows that this rank receives, by source rank."""
        self.choice = self._choose(rows, between)
        if self.choice.algorithm is Algorithm.FLAT:
            return super().transfer(rows, between)
        steps = exchange_steps(between.numpy(), self.rank, self._rails.grid.ranks_per_server)
        within, across = steps.within, steps.between
        with self.timer(self._rails.groups, rows.nbytes):
            order = torch.from_numpy(steps.before).to(rows.device)
            passing = all_to_all(
                rows[order], within.send.tolist(), within.receive.tolist(), self._rails.within
            )
            order = torch.from_numpy(steps.regroup).to(rows.device)
            return all_to_all(
                passing[order], across.send.tolist(), across.receive.tolist(), self._rails.between
            )

    def _choose(self, rows: Tensor, between: Tensor) -> AllToAllChoice:
        """Predict both times from the mean bytes between two ranks: the same on all ranks."""
        grid = self._rails.grid
        mean_rows = float(between.sum()) / between.numel()
        pair_bytes = mean_rows * rows.shape[1] * rows.element_size()
        exchange = AllToAll(grid.servers, grid.ranks_per_server, pair_bytes)
        return choose_all_to_all(exchange, self._rails.rates)
