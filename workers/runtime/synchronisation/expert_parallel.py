"""Expert parallelism: each rank has some experts of each mixture-of-experts layer, and tokens are sent to
them. Columns of partitioned tables are divided among the ranks too; ids and rows are exchanged.

Ranks form groups that host all experts together. An expert's host computes its gradient from all rows of the
group; the sum over its hosts, one in each group, is the sum over all ranks. Layers whose experts cannot be
spread (`spread_experts`) stay whole on every rank; for them, ranks exchange only counts of tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from typing import Any

import torch.distributed as dist
from torch import Tensor, nn

from communication.hooks.groups import open_group
from emulated_links.rates import EXPERTS, STATE
from moe.lina.packing import ExpertPacking
from punctual.moe import ExpertPlacement, LocalExchange, MoELayer, moe_layers
from punctual.moe.exchange import ExpertExchange
from punctual.moe.model import ExpertParameter, expert_parameters
from punctual.protocol.limits import PLAN_REFUSED
from workers.runtime import own_groups
from workers.runtime.experts.expert_exchanges import RehearsedExchange, RuntimeExchange
from workers.runtime.experts.host_experts import take_copies_to_device, take_to_device
from workers.runtime.experts.spread_experts import spread_experts
from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.parts import TrainingParts
from workers.runtime.function.returned import refused
from workers.runtime.state.experts import ExpertHosts, free
from workers.runtime.synchronisation.expert_gradients import HostGroups
from workers.runtime.synchronisation.hierarchical_exchange import HierarchicalExchange, RailGroups
from workers.runtime.synchronisation.interface import GradientSynchroniser
from workers.runtime.synchronisation.model import DistributedModel
from workers.runtime.synchronisation.model_tiers import ModelTiers, find_tiered
from workers.runtime.synchronisation.moving_experts import move_experts, send_parameters
from workers.runtime.synchronisation.partitioned_tables import PartitionedTables
from workers.runtime.tiers.usage import TierUsage


class ExpertParallelSynchroniser(GradientSynchroniser):
    """Takes the parameters of spread experts; gives each `MoELayer` an exchange among the ranks.

    One optional choice: `packing`, the number of hosts of each expert (default 1), which divides the number
    of ranks.

    Attributes:
        placements: by the name of each layer, the hosts of its experts.
        supports_tiers: whether states of experts may be in tiers. Under a plan that moves experts between
            ranks, or gives them several hosts, they stay in memory.
        follows_rails: whether rows may be sent in two phases between servers.
    """

    spreads_experts = True
    supports_tiers = True
    follows_rails = True
    placements: Mapping[str, ExpertPlacement]

    def __init__(self, choices: Mapping[str, Any]) -> None:
        unknown = set(choices) - {"packing"}
        if unknown:
            raise ValueError(f"there is nothing to choose about {min(unknown)!r}")
        self._packing = int(choices.get("packing", 1))
        self._rails: RailGroups | None = None
        self.placements = {}
        self._layers: dict[str, MoELayer] = {}
        self._spread: dict[str, ExpertParameter] = {}
        self._tables: PartitionedTables | None = None
        self._tiered: frozenset[str] = frozenset()
        self._tiers: ModelTiers | None = None
        self._parts: TrainingParts | None = None
        self._rows: dist.ProcessGroup | None = None
        self._opened: list[dist.ProcessGroup] = []
        self._ranks = 1

    def takes(self, parts: TrainingParts, left: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return the parameters of spread experts, and the blocks of partitioned tables."""
        self._spread = spread_experts(parts.function, parts.module)
        self._tables = PartitionedTables(parts.function, parts.module)
        whole = expert_parameters(parts.module).keys() - self._spread.keys()
        take_to_device(map(parts.module.get_parameter, whole), parts.optimizer, parts.device)
        if not self._spread:
            take_copies_to_device(parts.function, parts.device)
        return {name: parameter for name, parameter in left.items() if name in self.divided}

    @property
    def divided(self) -> frozenset[str]:
        """Names of the parameters that are divided among the ranks."""
        return frozenset(self._spread).union(() if self._tables is None else self._tables.names)

    def wrap(
        self,
        parts: TrainingParts,
        group: dist.ProcessGroup | None,
        parameters: Mapping[str, nn.Parameter],
    ) -> DistributedModel | None:
        """Connect the layers, and free the experts of other ranks. The first rank has those in host memory
        until their values are known.

        Raises:
            WorkerFailureError: the packing does not fit the number of ranks.
        """
        self._parts, self._ranks = parts, dist.get_world_size(group)
        self._layers = moe_layers(parts.module)
        self._hosts = HostGroups(group)
        if not self._layers and not self.divided:
            return None
        try:
            placements = self.packed(self._packing)
        except ValueError as error:
            raise WorkerFailureError(
                PLAN_REFUSED, f"the runtime plan cannot be followed: packing of experts: {error}"
            ) from error
        parts.experts = ExpertHosts({}, dist.get_rank(group), group)
        if self._ranks > 1:
            # A separate group: checkpointed layers also run in the backward pass, while DDP sends gradients.
            self._rows = self._open(EXPERTS, group)
            if self.follows_rails:
                self._rails = self._open_rails(parts, group)
            if self.divided:
                parts.experts.group = self._open(STATE, group)
        self._place(placements)
        self._divide_tables(group)
        parts.experts.hosts = self._hosts_by_parameter()
        if self.supports_tiers and self._packing == 1:
            self._tiered = find_tiered(self._layers, self._spread)
        own = filter(parts.experts.is_here, self.divided - self._tiered)
        take_to_device(map(parts.module.get_parameter, own), parts.optimizer, parts.device)
        if parts.experts.rank:
            self._free()
        return None

    def _divide_tables(self, group: dist.ProcessGroup | None) -> None:
        assert self._tables is not None
        self._tables.place(self._ranks)
        if self._ranks > 1 and self._tables.names:
            # A separate group: a schedule may send rows of experts at the same time.
            self._tables.connect(self._open(EXPERTS, group))

    def _open(self, description: str, group: dist.ProcessGroup | None) -> dist.ProcessGroup:
        opened = open_group(description, group)
        own_groups.own(opened)
        self._opened.append(opened)
        return opened

    def _open_rails(self, parts: TrainingParts, group: dist.ProcessGroup | None) -> RailGroups | None:
        rails = RailGroups.open(parts.topology, group)
        if rails is not None:
            own_groups.own(*rails.groups)
            self._opened += rails.groups
        return rails

    def packed(self, packing: int) -> dict[str, ExpertPlacement]:
        """Return the placements of all layers with `packing` hosts for each expert.

        Raises:
            ValueError: `packing` does not divide the number of ranks.
        """
        spread = {each.layer for each in self._spread.values()}
        return {
            name: _packed(len(layer.experts), self._ranks, packing if name in spread else self._ranks)
            for name, layer in self._layers.items()
        }

    def move_to(self, placements: Mapping[str, ExpertPlacement]) -> None:
        """Move experts, with their optimizer states, to other hosts.

        All ranks call this together, between two iterations, with the same placements.

        Args:
            placements: new placements, by the name of each layer whose experts move.

        Raises:
            ValueError: a layer is unknown or not spread, or the placement does not fit it.
        """
        assert self._parts is not None
        spread = {each.layer for each in self._spread.values()}
        for name, placement in placements.items():
            if name not in spread:
                raise ValueError(f"experts of {name!r} are not spread; those of {sorted(spread)} are")
            if len(placement.hosts) != len(self._layers[name].experts) or placement.ranks != self._ranks:
                raise ValueError(f"{placement} is not for the experts of {name!r} on {self._ranks} ranks")
        self._give_tiers_back()
        self._place({**self.placements, **placements})
        move_experts(self._parts, self._hosts_by_parameter())
        self._take_tiers()

    def _place(self, placements: Mapping[str, ExpertPlacement]) -> None:
        """Send later rows by these placements."""
        self.placements = placements
        if self._rows is None:
            return
        spread = {each.layer for each in self._spread.values()}
        self._hosts.open(hosts for name in sorted(spread) for hosts in placements[name].hosts)
        for name, layer in self._layers.items():
            layer.exchange = self.exchange_for(name, placements[name], self._rows)

    def exchange_for(self, name: str, placement: ExpertPlacement, group: dist.ProcessGroup) -> ExpertExchange:
        """Return the exchange of a layer's rows."""
        if self._rails is None:
            return RuntimeExchange(placement, group)
        return HierarchicalExchange(placement, group, self._rails)

    def _hosts_by_parameter(self) -> dict[str, tuple[int, ...]]:
        """Return the hosts of each parameter. The first one stores it; the first rotates so that shards have
        equal sizes."""
        found = {}
        for name, each in self._spread.items():
            hosts = self.placements[each.layer].hosts[each.expert]
            turn = each.expert % len(hosts)
            found[name] = hosts[turn:] + hosts[:turn]
        return found | ({} if self._tables is None else self._tables.hosts)

    def begin_alike(self) -> None:
        """Give the hosts of each expert the first rank's values."""
        if self._parts is not None and self._ranks > 1 and self.divided:
            experts = self._parts.experts
            send_parameters(
                self._parts,
                () if experts.rank else self.divided,
                lambda name: [rank for rank in experts.hosts[name] if rank],
            )
        self._free()
        self._take_tiers()

    def after_backward(self) -> None:
        """Turn gradients into means over the ranks.

        Raises:
            WorkerFailureError: an expert of another rank has a gradient.
        """
        if self._parts is None or self._ranks == 1:
            return
        experts = self._parts.experts
        gradients = {}
        for name, parameter in self._parts.module.named_parameters():
            if name not in experts.hosts or parameter.grad is None:
                continue
            if not experts.is_here(name):
                raise refused(
                    f"train() computes with the parameter {name!r}, which lies on another worker: leave "
                    "penalties on the weights of experts and tables to the optimizer (weight_decay)"
                )
            gradients[name] = parameter.grad
        self.sum_over_hosts(gradients)
        for gradient in gradients.values():
            gradient /= self._ranks

    def sum_over_hosts(self, gradients: Mapping[str, Tensor]) -> None:
        """Sum the gradients of this rank's experts, by parameter, over the hosts of each, in place."""
        assert self._parts is not None
        hosts = self._parts.experts.hosts
        self._hosts.sum_gradients((hosts[name], gradient) for name, gradient in gradients.items())

    def state(self) -> dict[str, Tensor]:
        """Return {}: experts are part of the training state itself."""
        return {}

    def load_state(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Free the experts of other ranks; those of this rank are loaded."""
        self._free()
        self._take_tiers()

    def _take_tiers(self) -> None:
        """Move the states of this rank's experts into their tiers."""
        if self._parts is None:
            return
        hosted = {
            name: self._spread[name] for name in sorted(self._tiered) if self._parts.experts.is_here(name)
        }
        if hosted:
            self._tiers = ModelTiers(self._parts, self._layers, hosted)
            self._parts.kept_elsewhere, self._parts.tier_usage = self._tiers.value, self._tiers.usage

    def _give_tiers_back(self) -> None:
        tiers, self._tiers = self._tiers, None
        if tiers is not None and self._parts is not None:
            tiers.give_back()
            self._parts.kept_elsewhere, self._parts.tier_usage = lambda _name: None, TierUsage

    def _free(self) -> None:
        if self._parts is not None:
            parts = self._parts
            free(parts.experts, parts.module, parts.optimizer, parts.device)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Give the first rank all experts, so it can run the model alone. All ranks call this together."""
        if self._parts is None or self._ranks == 1 or not self.divided:
            yield
            return
        experts = self._parts.experts
        send_parameters(
            self._parts,
            [name for name in sorted(self.divided) if experts.is_owned(name)],
            lambda name: () if 0 in experts.hosts[name] else (0,),
        )
        try:
            yield
        finally:
            self._free()

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Let the layers compute only this rank's experts, ignoring the gate, to measure time and memory."""
        rank = 0 if self._parts is None else self._parts.experts.rank
        exchanges = {name: layer.exchange for name, layer in self._layers.items()}
        for name, layer in self._layers.items():
            layer.exchange = RehearsedExchange(self.placements[name].hosted_by(rank))
        tables = nullcontext() if self._tables is None else self._tables.rehearsing(rank, self._ranks)
        try:
            with tables:
                yield
        finally:
            for name, layer in self._layers.items():
                layer.exchange = exchanges[name]

    @contextmanager
    def restoring(self) -> Iterator[None]:
        """Keep the states of experts in memory while a state is loaded into the model."""
        self._give_tiers_back()
        yield
        self._take_tiers()

    def close(self) -> None:
        """Disconnect the layers; destroy the groups."""
        self._give_tiers_back()
        for layer in self._layers.values():
            layer.exchange = LocalExchange()
        if self._tables is not None:
            self._tables.disconnect()
        if self._parts is not None:
            self._hosts.close()
        own_groups.disown(*self._opened)
        for group in self._opened:
            dist.destroy_process_group(group)
        self._opened.clear()


def _packed(experts: int, ranks: int, packing: int) -> ExpertPlacement:
    packed = ExpertPacking(experts, ranks, packing)
    return ExpertPlacement(tuple(tuple(packed.hosts(expert)) for expert in range(experts)), ranks)
