"""Finds the experts that can be divided among ranks, and functions that keep references to them."""

from __future__ import annotations

from collections.abc import Iterable

from torch import nn

from punctual.function import TrainingFunction
from punctual.moe.model import ExpertParameter, expert_parameters, moe_layers


def spread_experts(function: TrainingFunction, module: nn.Module) -> dict[str, ExpertParameter]:
    """Return the parameters of experts that may be spread, by their names in the model's state; the same on
    every rank.

    A layer stays whole on every rank if its experts have buffers or parameters that the model uses elsewhere
    too, or if the model's own `state_dict` renames them. All layers stay whole if the model trains only
    experts, since DDP needs a parameter, if some experts are frozen, or if the function keeps layers: those
    may be copies, such as an average of the model, which would read experts of other ranks.
    """
    named, layers = expert_parameters(module), moe_layers(module)
    owners = {id(each.parameter): (each.layer, each.expert) for each in named.values()}
    whole = set[str]()
    state_names = module.state_dict().keys() if named else ()
    for name, each in named.items():
        if (
            name not in state_names
            or owners[id(each.parameter)] != (each.layer, each.expert)
            or next(layers[each.layer].experts[each.expert].buffers(), None) is not None
        ):
            whole |= {each.layer, owners[id(each.parameter)][0]}
    others_trained = False
    for name, parameter in module.named_parameters(remove_duplicate=False):
        if name in named:
            continue
        if id(parameter) in owners:
            whole.add(owners[id(parameter)][0])
        others_trained = others_trained or parameter.requires_grad
    has_frozen = any(not each.parameter.requires_grad for each in named.values())
    if not others_trained or has_frozen or _keeps_layers(function, module):
        return {}
    return {name: each for name, each in named.items() if each.layer not in whole}


def _keeps_layers(function: TrainingFunction, module: nn.Module) -> bool:
    """Return whether the function has mixture-of-experts layers that are not the model's."""
    known = {id(layer) for layer in moe_layers(module).values()}
    return any(
        id(layer) not in known for kept in kept_modules(function) for layer in moe_layers(kept).values()
    )


def keeps_experts(function: TrainingFunction, spread: Iterable[nn.Parameter]) -> bool:
    """Return whether the function has a module with spread experts, such as the model itself."""
    known = {id(parameter) for parameter in spread}
    return any(id(each) in known for module in kept_modules(function) for each in module.parameters())


def kept_modules(function: TrainingFunction) -> list[nn.Module]:
    """Return the modules that are attributes of the function."""
    return [each for each in vars(function).values() if isinstance(each, nn.Module)]
