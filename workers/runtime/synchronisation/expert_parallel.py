"""Expert parallelism: each rank has some experts of each mixture-of-experts layer, and tokens travel to them.

The gradient of an expert is computed where all its rows come together, so it is the sum over ranks already.
Layers whose experts cannot be spread (`spread_experts`) stay whole on every rank; their ranks exchange counts
of tokens alone.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from communication.hooks.groups import open_group
from punctual.moe import ExpertPlacement, GroupExchange, LocalExchange, MoELayer, moe_layers
from punctual.moe.exchange import ComputeExpert
from punctual.moe.model import ExpertParameter
from workers.links.rates import EXPERTS
from workers.runtime import own_groups
from workers.runtime.emulated_network import EmulatedGroup
from workers.runtime.parts import TrainingParts
from workers.runtime.returned import refused
from workers.runtime.spread_experts import spread_experts
from workers.runtime.state.delivery import Held, redistribute
from workers.runtime.state.experts import ExpertHosts, free
from workers.runtime.synchronisation.interface import GradientSynchroniser
from workers.runtime.synchronisation.sparse import first_ones_values


class ExpertParallelSynchroniser(GradientSynchroniser):
    """Takes the parameters of spread experts; gives each `MoELayer` an exchange among the ranks.

    Choices: `hosts`, by the name of a layer the ranks of each of its experts; without it, the ranks have runs
    of experts (`ExpertPlacement.even`).
    """

    def __init__(self, choices: Mapping[str, Any]) -> None:
        unknown = set(choices) - {"hosts"}
        if unknown:
            raise ValueError(f"there is nothing to choose about {min(unknown)!r}")
        self._hosts: Mapping[str, Sequence[Sequence[int]]] = dict(choices.get("hosts", {}))
        self._layers: dict[str, MoELayer] = {}
        self._spread: dict[str, ExpertParameter] = {}
        self._placements: dict[str, ExpertPlacement] = {}
        self._parts: TrainingParts | None = None
        self._everybody: dist.ProcessGroup | None = None
        self._group: dist.ProcessGroup | None = None
        self._ranks = 1

    def takes(self, parts: TrainingParts, left: Mapping[str, nn.Parameter]) -> dict[str, nn.Parameter]:
        """Return the parameters of spread experts."""
        self._spread = spread_experts(parts)
        return {name: parameter for name, parameter in left.items() if name in self._spread}

    def wrap(
        self,
        parts: TrainingParts,
        group: dist.ProcessGroup | None,
        parameters: Mapping[str, nn.Parameter],
    ) -> None:
        """Connect the layers in a group of their own: layers may run in the backward pass too, if they are
        checkpointed, while DDP sends gradients. All ranks have all experts until their values are known."""
        self._parts, self._everybody = parts, group
        self._ranks = dist.get_world_size(group)
        self._layers = moe_layers(parts.module)
        if not self._layers:
            return
        self._placements = {name: self._placement(name) for name in self._layers}
        hosts = {name: self._placements[each.layer].hosts[each.expert] for name, each in self._spread.items()}
        parts.experts = ExpertHosts(hosts, dist.get_rank(group))
        if self._ranks == 1:
            return
        self._group = open_group(EXPERTS, group)
        own_groups.own(self._group)
        for name, layer in self._layers.items():
            layer.exchange = RuntimeExchange(self._placements[name], self._group)

    def _placement(self, name: str) -> ExpertPlacement:
        experts = len(self._layers[name].experts)
        if all(each.layer != name for each in self._spread.values()):
            return ExpertPlacement((tuple(range(self._ranks)),) * experts, self._ranks)
        if name not in self._hosts:
            return ExpertPlacement.even(experts, self._ranks)
        hosts = tuple(tuple(map(int, ranks)) for ranks in self._hosts[name])
        if len(hosts) != experts or any(len(ranks) > 1 for ranks in hosts):
            raise ValueError(f"{name} needs one host for each of its {experts} experts, not {hosts}")
        return ExpertPlacement(hosts, self._ranks)

    def begin_alike(self) -> None:
        """Give the hosts of each expert the first rank's values; free the experts of other ranks."""
        first_ones_values([each.parameter for each in self._spread.values()], self._everybody)
        self._free()

    def after_backward(self) -> None:
        """Turn sums over the ranks into means.

        Raises:
            WorkerFailureError: an expert of another rank has a gradient.
        """
        if self._parts is None or self._ranks == 1:
            return
        for name, parameter in self._parts.module.named_parameters():
            if name not in self._spread or parameter.grad is None:
                continue
            if not self._parts.experts.is_here(name):
                raise refused(
                    f"train() computes with the parameter {name!r}, which lies on another worker: leave "
                    "penalties on the weights of experts to the optimizer (weight_decay)"
                )
            parameter.grad /= self._ranks

    def state(self) -> dict[str, Tensor]:
        """Experts are a part of the state itself."""
        return {}

    def load_state(self, states: Sequence[Mapping[str, Tensor]]) -> None:
        """Free the experts of other ranks: those of this rank have come."""
        self._free()

    def _free(self) -> None:
        if self._parts is not None:
            free(self._parts.experts, self._parts.module, self._parts.optimizer)

    @contextmanager
    def whole(self) -> Iterator[None]:
        """Give the first rank all experts, so it can run the model alone. All ranks call this together."""
        if self._ranks == 1 or not self._spread:
            yield
            return
        assert self._parts is not None
        experts = self._parts.experts
        owned = {
            ("model", name): each.parameter.detach().cpu()
            for name, each in self._spread.items()
            if experts.is_owned(name)
        }
        found = redistribute(Held(dict(owned)), lambda _path: (0,), self._everybody)
        for path, tensor in found.tensors.items():
            if path not in owned:
                parameter = self._spread[path[1]].parameter
                parameter.data = tensor.to(parameter.device)
        try:
            yield
        finally:
            self._free()

    @contextmanager
    def rehearsing(self) -> Iterator[None]:
        """Let the layers compute the experts of this rank alone, whatever the gate says: only time and memory
        count."""
        rank = 0 if self._parts is None else self._parts.experts.rank
        exchanges = {name: layer.exchange for name, layer in self._layers.items()}
        for name, layer in self._layers.items():
            layer.exchange = RehearsedExchange(self._placements[name].hosted_by(rank))
        try:
            yield
        finally:
            for name, layer in self._layers.items():
                layer.exchange = exchanges[name]

    def close(self) -> None:
        """Disconnect the layers; take the group down."""
        for layer in self._layers.values():
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


class RehearsedExchange(LocalExchange):
    """Computes as many rows as this rank has, with the experts that it has."""

    def __init__(self, hosted: Sequence[int]) -> None:
        self._hosted = hosted

    def exchange(self, rows: Tensor, counts: Tensor, compute: ComputeExpert) -> Tensor:
        """Divide the rows evenly among the experts."""
        if not self._hosted:
            return rows
        parts = rows.tensor_split(len(self._hosted))
        return torch.cat([compute(expert, part) for expert, part in zip(self._hosted, parts, strict=True)])
