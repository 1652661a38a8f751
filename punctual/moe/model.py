"""All mixture-of-experts layers of a model together."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from punctual.moe.layer import MoELayer
from punctual.moe.records import RoutingCounts


def moe_layers(model: nn.Module) -> dict[str, MoELayer]:
    """Return the layers by their names in the model, in its order. A layer with several names comes once."""
    return {name: module for name, module in model.named_modules() if isinstance(module, MoELayer)}


@dataclass(frozen=True)
class ExpertParameter:
    """A parameter of an expert.

    Attributes:
        layer: the layer's name in the model, as in `moe_layers`.
        expert: the expert's id in the layer.
    """

    layer: str
    expert: int
    parameter: nn.Parameter


def expert_parameters(model: nn.Module) -> dict[str, ExpertParameter]:
    """Return the parameters that belong to one expert each, by their names in the model's `state_dict`.

    A layer with several names has its parameters under each of them.
    """
    first_names = {id(layer): name for name, layer in moe_layers(model).items()}
    return {
        f"{layer_name}.experts.{expert}.{name}".lstrip("."): ExpertParameter(
            first_names[id(layer)], expert, parameter
        )
        for layer_name, layer in model.named_modules(remove_duplicate=False)
        if isinstance(layer, MoELayer)
        for expert, module in enumerate(layer.experts)
        for name, parameter in module.named_parameters()
    }


def balance_loss(model: nn.Module) -> Tensor:
    """Return the weighted sum of the balance losses of all forward passes since the last call; 0 if none.

    Add it to the loss before the backward pass. The first caller takes it, so it counts once.
    """
    losses = [loss for layer in moe_layers(model).values() for loss in layer.records.take_losses()]
    return torch.stack(losses).sum() if losses else torch.zeros(())


def routing_counts(model: nn.Module) -> dict[str, RoutingCounts]:
    """Return the routing counts of each layer since the last call, by the layers' names."""
    return {name: layer.records.take_counts() for name, layer in moe_layers(model).items()}
