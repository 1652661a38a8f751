"""Keeps experts in host memory until their placement is known, so that no device ever holds all of them.

`init_model()` builds the whole model, since all ranks draw the same initial weights. Experts that may be
spread are not moved to the device with the rest. Each rank moves its own before the optimizer creates its
state.
"""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor, nn
from torch.optim import Optimizer

from punctual.function import TrainingFunction
from punctual.moe import moe_layers
from workers.runtime.experts.divisible_tables import divisible_tables
from workers.runtime.experts.spread_experts import kept_modules, spread_experts


def move_rest(function: TrainingFunction, module: nn.Module, device: torch.device) -> None:
    """Move a model to its device, except experts and table columns that may be divided among ranks."""
    # A layer at two places in the model is one layer with two names.
    names = spread_experts(function, module).keys() | divisible_tables(function, module).keys()
    spread = {module.get_parameter(name) for name in names}
    held = {parameter: parameter.detach().cpu() for parameter in spread}
    for parameter, value in held.items():
        parameter.data = value.new_empty(0)
    module.to(device)
    for parameter, value in held.items():
        parameter.data = value


def take_to_device(parameters: Iterable[nn.Parameter], optimizer: Optimizer, device: torch.device) -> None:
    """Move parameters of experts to the device, with their existing optimizer states."""
    for parameter in parameters:
        parameter.data = parameter.data.to(device)
        kept = optimizer.state.get(parameter, {})
        for key, value in kept.items():
            if isinstance(value, Tensor) and value.shape == parameter.shape:
                kept[key] = value.to(device)


def take_copies_to_device(function: TrainingFunction, device: torch.device) -> None:
    """Move the experts of the function's copies of layers, such as an average, to the device."""
    for module in kept_modules(function):
        for layer in moe_layers(module).values():
            if layer.gate_weights.weight.device == device:
                layer.to(device)
