"""Sizes of a model with mixture-of-experts layers, reported before any level is measured."""

from __future__ import annotations

import inspect
import logging
from typing import Any

import torch
from torch import nn
from torch.optim import Optimizer

from punctual.moe import MoELayer, expert_parameters, moe_layers
from punctual.moe.tables import table_blocks
from workers.runtime.function.parts import TrainingParts

_log = logging.getLogger(__name__)
#: Rows and columns of the parameter on which an optimizer's state is measured.
PROBE_SIZE = 256


def mixture_fields(parts: TrainingParts) -> dict[str, Any] | None:
    """Return the fields of a `mixture`; None for a model without experts that could be spread.

    An expert is spread if all of its parameters are trained. Partitioned tables are left out: they need not
    be whole on a worker, and the sizes are lower bounds per worker. The optimizer's state is measured on a
    small parameter, since it is empty before the first step.
    """
    layers = moe_layers(parts.module)
    if not layers:
        return None
    kept_share = optimizer_share(parts.optimizer)

    def states_of(parameter: nn.Parameter) -> int:
        size = parameter.numel() * parameter.element_size()
        return int(size * (2.0 + kept_share)) if parameter.requires_grad else size

    states: dict[str, dict[int, int]] = {}
    whole = set()
    # A layer with several names has each parameter once.
    for each in {id(each.parameter): each for each in expert_parameters(parts.module).values()}.values():
        by_expert = states.setdefault(each.layer, {})
        by_expert[each.expert] = by_expert.get(each.expert, 0) + states_of(each.parameter)
        if not each.parameter.requires_grad:
            whole.add(each.layer)
    spread = {layer: by_expert for layer, by_expert in states.items() if layer not in whole}
    if not spread:
        return None
    parameters = list(parts.module.parameters())
    tables = {id(parts.module.get_parameter(name)) for name in table_blocks(parts.module)}
    total = sum(states_of(each) for each in parameters if id(each) not in tables)
    return {
        "parameter_bytes": sum(each.numel() * each.element_size() for each in parameters),
        "dense_state_bytes": total - sum(sum(by_expert.values()) for by_expert in spread.values()),
        "layers": [
            {
                "experts": len(by_expert),
                "state_bytes": min(by_expert.values()),
                "weight_bytes": _weight_bytes(layers[name]),
                "is_tiered": layers[name].tiers is not None,
            }
            for name, by_expert in spread.items()
        ],
        "on_host": parts.device.type == "cpu",
    }


def _weight_bytes(layer: MoELayer) -> int:
    """Return the bytes of the smallest expert."""
    return min(
        sum(each.numel() * each.element_size() for each in expert.parameters()) for expert in layer.experts
    )


def optimizer_share(optimizer: Optimizer) -> float:
    """Return the bytes of an optimizer's state per byte of a parameter; 0 if they cannot be measured on a
    separate parameter."""
    probe = nn.Parameter(torch.zeros(PROBE_SIZE, PROBE_SIZE))
    probe.grad = torch.zeros_like(probe)
    try:
        accepted = inspect.signature(type(optimizer)).parameters
        settings = {name: value for name, value in optimizer.defaults.items() if name in accepted}
        own = type(optimizer)([probe], **settings)
        own.step()
    except Exception as error:  # noqa: BLE001 - the optimizer may be the function's own
        _log.info("what the optimizer keeps is not known: %s", error)
        return 0.0
    kept = sum(
        value.numel() * value.element_size()
        for value in own.state[probe].values()
        if isinstance(value, torch.Tensor) and value.numel() > 1
    )
    return kept / (probe.numel() * probe.element_size())
