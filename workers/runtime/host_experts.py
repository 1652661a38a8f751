"""Experts wait in host memory until it is known which of them a rank has, so that its device never has all.

`init_model()` builds the whole model, since all ranks draw the same initial weights. Its experts that may be
spread do not go to the device with the rest; each rank takes its own there before the optimizer makes its
state.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch import Tensor, nn

from punctual.function import TrainingFunction
from punctual.moe import moe_layers
from workers.runtime.spread_experts import kept_modules, spread_experts

if TYPE_CHECKING:
    from workers.runtime.parts import TrainingParts


def move_rest(function: TrainingFunction, module: nn.Module, device: torch.device) -> None:
    """Move a model to its device, without the experts that ranks may divide among them."""
    held: dict[str, Tensor] = {}
    for name in spread_experts(function, module):
        parameter = module.get_parameter(name)
        held[name] = parameter.detach().cpu()
        parameter.data = held[name].new_empty(0)
    module.to(device)
    for name, value in held.items():
        module.get_parameter(name).data = value


def take_to_device(parts: TrainingParts, names: Iterable[str]) -> None:
    """Move experts to the device, and what the optimizer has of them already.

    Args:
        names: of parameters in the model.
    """
    for name in names:
        parameter = parts.module.get_parameter(name)
        parameter.data = parameter.data.to(parts.device)
        kept = parts.optimizer.state.get(parameter, {})
        for key, value in kept.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                kept[key] = value.to(parts.device)


def take_copies_to_device(parts: TrainingParts) -> None:
    """Move the experts of copies that the function made of layers on the device, such as an average."""
    for module in kept_modules(parts.function):
        for layer in moe_layers(module).values():
            if layer.gate_weights.weight.device == parts.device:
                layer.to(parts.device)
