"""Sizes of a model with mixture-of-experts layers, reported before its first level is measured."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from punctual.protocol.fields import Count, Message

MOST_LAYERS = 4096
Experts = Annotated[int, Field(ge=1, le=1 << 16)]


class ExpertLayerSizes(Message):
    """A layer whose experts can be spread over workers. `state_bytes`: of one expert, its weights, gradients
    and optimizer states; `weight_bytes`: its weights only. `is_tiered`: whether these states are in host
    memory and files."""

    experts: Experts
    state_bytes: Count
    weight_bytes: Count = 0
    is_tiered: bool = False


class Mixture(Message):
    """Sizes of the model. `parameter_bytes`: its weights. `dense_state_bytes`: states that are complete on
    every worker. `on_host`: whether the worker's device is its host's processor."""

    parameter_bytes: Count
    dense_state_bytes: Count
    layers: Annotated[list[ExpertLayerSizes], Field(min_length=1, max_length=MOST_LAYERS)]
    on_host: bool = False
