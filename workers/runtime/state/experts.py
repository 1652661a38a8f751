"""The part of a state that belongs to experts that are spread over the ranks: the parameters of each expert
and what the optimizer keeps of them. One host of an expert stores them whole in its shard."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from workers.runtime.state.delivery import Held
from workers.runtime.state.layout import Path, put_together, take_apart


@dataclass
class ExpertHosts:
    """The hosts of parameters that belong to spread experts. They change when experts move; the names do not.

    Attributes:
        hosts: ranks by the parameter's name in the model's state; the first one stores it. All ranks have the
            parameters that are not named here.
        rank: this rank.
        group: in which experts travel; the whole generation if None.
    """

    hosts: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    rank: int = 0
    group: dist.ProcessGroup | None = None

    def is_here(self, name: str) -> bool:
        """Return whether this rank has the parameter."""
        return name not in self.hosts or self.rank in self.hosts[name]

    @property
    def elsewhere(self) -> frozenset[str]:
        """Names of the parameters that this rank does not have."""
        return frozenset(name for name in self.hosts if not self.is_here(name))

    def is_owned(self, name: str) -> bool:
        """Return whether it is a parameter of a spread expert that this rank stores."""
        return name in self.hosts and self.hosts[name][0] == self.rank


class ExpertStates:
    """Takes experts out of states of a model and its optimizer, and puts them back."""

    def __init__(self, hosts: ExpertHosts, module: nn.Module, optimizer: Optimizer) -> None:
        self.hosts = hosts
        names = {id(parameter): name for name, parameter in module.named_parameters() if name in hosts.hosts}
        #: Names of experts' parameters by their numbers in the optimizer's state.
        self._numbered = {
            number: names[id(parameter)]
            for number, parameter in enumerate(_numbered(optimizer))
            if id(parameter) in names
        }

    def apart(self, state: Mapping[str, Any]) -> tuple[Mapping[str, Any], Held]:
        """Return the state without experts, and what this rank stores of them; tensors are shared.

        Raises:
            UnstorableError: the optimizer keeps something that would not come back as it is.
        """
        held = Held()
        if not self.hosts.hosts:
            return state, held
        model = dict(state["model"])
        for name in self.hosts.hosts:
            tensor = model.pop(name)
            if self.hosts.is_owned(name):
                held.tensors["model", name] = tensor.detach()
        kept = dict(state["optimizer"]["state"])
        taken = {number: kept.pop(number) for number in self._numbered if number in kept}
        owned = {number: one for number, one in taken.items() if self.hosts.is_owned(self._numbered[number])}
        rest, entries, tensors = take_apart({"optimizer": {"state": owned}}, lambda _path: True)
        held.rests |= {
            ("optimizer", "state", number): one for number, one in rest["optimizer"]["state"].items()
        }
        held.tensors |= {entry.path: tensor for entry, tensor in zip(entries, tensors, strict=True)}
        return {**state, "model": model, "optimizer": {**state["optimizer"], "state": kept}}, held

    def wanted_by(self, path: Path) -> tuple[int, ...]:
        """Return the hosts of what is at a place; none for what no expert of this model has."""
        return self.hosts.hosts.get(self.name_at(path), ())

    def name_at(self, path: Path) -> str:
        """Return the name of the parameter to which belongs what is at a place; empty if it is none of an
        expert."""
        return str(path[1]) if path[0] == "model" else self._numbered.get(path[2], "")

    def missing(self, content: Mapping[str, Any], held: Held) -> str | None:
        """Return the name of a parameter of this rank that is in neither; None if all are there."""
        for name in self.hosts.hosts:
            came = ("model", name) in held.tensors or name in content["model"]
            if self.hosts.is_here(name) and not came:
                return name
        return None

    def together(self, content: Mapping[str, Any], held: Held) -> dict[str, Any]:
        """Return the state with this rank's experts."""
        model = dict(content["model"])
        model |= {path[1]: tensor for path, tensor in held.tensors.items() if path[0] == "model"}
        kept = dict(content["optimizer"]["state"])
        for place, rest in held.rests.items():
            size = len(place)
            own = {path[size:]: one for path, one in held.tensors.items() if path[:size] == place}
            kept[place[2]] = put_together(rest, own)
        return {**content, "model": model, "optimizer": {**content["optimizer"], "state": kept}}


def _numbered(optimizer: Optimizer) -> list[Tensor]:
    """Return parameters in the order in which an optimizer's state numbers them."""
    found: dict[int, Tensor] = {}
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            found.setdefault(id(parameter), parameter)
    return list(found.values())


def free(hosts: ExpertHosts, module: nn.Module, optimizer: Optimizer, device: torch.device) -> None:
    """Free the memory of experts that this rank does not host. Their parameters keep their shapes, and read
    as NaN on the device, so a result that depends on them shows it."""
    for name, parameter in module.named_parameters():
        if hosts.is_here(name):
            continue
        nothing = torch.full((1,), torch.nan, dtype=parameter.dtype, device=device)
        parameter.data = nothing.expand(parameter.shape)
        parameter.grad = None
        optimizer.state.pop(parameter, None)
