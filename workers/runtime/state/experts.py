"""The part of a state that belongs to spread experts: the parameters of each expert and their optimizer
states. One host of an expert stores them whole in its shard."""

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
    """The hosts of spread experts' parameters. Hosts change when experts move; the names do not.

    Attributes:
        hosts: ranks by the parameter's name in the model's state; the first one stores it. All ranks have the
            parameters that are not named here.
        rank: this rank.
        group: the group in which experts are sent; None: the whole generation.
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
        """Return whether this rank stores the parameter, as one of a spread expert."""
        return name in self.hosts and self.hosts[name][0] == self.rank


class ExpertStates:
    """Extracts experts from states of a model and its optimizer, and restores them."""

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
        """Return the state without experts, and the experts that this rank stores; tensors are shared.

        Raises:
            UnstorableError: an optimizer state has a value that cannot be restored unchanged.
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
        """Return the hosts of the value at a path; () if it belongs to no expert of this model."""
        return self.hosts.hosts.get(self.name_at(path), ())

    def name_at(self, path: Path) -> str:
        """Return the name of the parameter to which the value at a path belongs; "" if it is no expert's."""
        return str(path[1]) if path[0] == "model" else self._numbered.get(path[2], "")

    def missing(self, content: Mapping[str, Any], held: Held) -> str | None:
        """Return the name of a parameter of this rank that is in neither; None if there is no such."""
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
