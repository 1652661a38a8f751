"""Sizes of models with experts, as stored in curves."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from moe.planning.memory import ExpertLayer, ModelSizes


def model_sizes(mixture: Mapping[str, Any]) -> ModelSizes:
    """Return the sizes stored in a curve."""
    layers = tuple(
        ExpertLayer(
            layer["experts"],
            layer["state_bytes"],
            layer.get("weight_bytes", 0),
            is_tiered=layer.get("is_tiered", False),
        )
        for layer in mixture["layers"]
    )
    return ModelSizes(
        mixture["parameter_bytes"], mixture["dense_state_bytes"], layers, on_host=mixture["on_host"]
    )
