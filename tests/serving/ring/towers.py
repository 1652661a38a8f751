"""Models with layers that can stream, and limits of their device memory."""

from __future__ import annotations

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn

from punctual.moe import MoELayer
from workers.serving.ring.layer_ring import LayerRing
from workers.serving.ring.layers import count_bytes
from workers.serving.ring.placing import place_model

CPU = torch.device("cpu")
WIDTH = 16


class Block(nn.Module):
    """A dense layer whose parameters are read by itself and by its parts."""

    def __init__(self) -> None:
        super().__init__()
        self.inner, self.outer = nn.Linear(WIDTH, 64), nn.Linear(64, WIDTH)
        self.scale = nn.Parameter(torch.rand(WIDTH))
        self.register_buffer("shift", torch.rand(WIDTH))

    def forward(self, rows: Tensor) -> Tensor:
        """Return the transformed rows."""
        hidden = nn.functional.linear(rows, self.inner.weight, self.inner.bias)
        return rows + self.scale * self.outer(torch.relu(hidden)) + self.shift


class Tower(nn.Module):
    """Layers between two others. `order`: of the layers in a pass, cyclically."""

    def __init__(self, layers: int, layer: Callable[[], nn.Module] = Block) -> None:
        super().__init__()
        self.first, self.last = nn.Linear(4, WIDTH), nn.Linear(WIDTH, 2)
        self.layers = nn.ModuleList(layer() for _ in range(layers))
        self.order = list(range(layers))

    def forward(self, rows: Tensor) -> Tensor:
        """Return two outputs for each row."""
        rows = self.first(rows).unsqueeze(0)
        for number in self.order:
            rows = torch.tanh(self.layers[number](rows))
        outputs: Tensor = self.last(rows).squeeze(0)
        return outputs


def mixture() -> MoELayer:
    return MoELayer(WIDTH, 32, 4)


def encoder_layer() -> nn.Module:
    """Return a layer that computes in another way, with other bits, if it has hooks."""
    return nn.TransformerEncoderLayer(WIDTH, 2, 32, batch_first=True)


def make_pair(model: Tower, sections: int) -> tuple[Tower, Tower, LayerRing]:
    """Return a model, a copy of it in a ring with this many sections, and the ring."""
    torch.manual_seed(7)
    resident = model.eval()
    streamed = copy.deepcopy(resident)
    ring = place_model(streamed, CPU, bytes_with(streamed, sections))
    assert ring is not None
    assert ring.plan.sections == sections
    return resident, streamed, ring


def bytes_with(model: Tower, sections: int) -> int:
    """Return the device memory that this many sections take."""
    from workers.serving.ring.layers import find_layers

    layers = next(layer_set for layer_set in find_layers(model) if layer_set)
    streamed = sum(parameter.nbytes for layer in layers for parameter in layer.parameters)
    return count_bytes(model) - streamed + sections * max(layer.bytes for layer in layers)
