"""The layers of a model that can stream, and the layout of a layer's parameters in a section."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from punctual.moe import moe_layers

#: Parameters of a layer begin at multiples of this size, like separate tensors on a GPU.
ALIGNMENT_BYTES = 256


@dataclass(frozen=True, slots=True)
class RingLayer:
    """A layer whose parameters stream.

    Attributes:
        module: contains the parameters, and modules that read them.
        parameters: parameters of this layer alone. Buffers, and parameters that are shared or not contiguous,
            stay on the device.
        shapes: shapes of the parameters, which are empty while they are not on the device.
        offsets: offsets of the parameters in a section, in bytes.
        bytes: size of the packed layer.
    """

    name: str
    module: nn.Module
    parameters: tuple[nn.Parameter, ...]
    shapes: tuple[torch.Size, ...]
    offsets: tuple[int, ...]
    bytes: int

    def pack(self, packed: Tensor) -> None:
        """Write the parameters to a section."""
        for parameter, view in zip(self.parameters, self.views(packed), strict=True):
            view.copy_(parameter.detach())

    def views(self, section: Tensor) -> tuple[Tensor, ...]:
        """Return views of the parameters in a section."""
        return tuple(
            section[offset : offset + shape.numel() * parameter.itemsize].view(parameter.dtype).view(shape)
            for parameter, shape, offset in zip(self.parameters, self.shapes, self.offsets, strict=True)
        )


def find_layers(module: nn.Module) -> Iterator[tuple[RingLayer, ...]]:
    """Yield sets of layers that can stream: the experts of all mixtures, then the list of modules for which a
    ring saves most memory."""
    yield _ring_layers(
        module, {f"{name}.experts": layer.experts for name, layer in moe_layers(module).items()}
    )
    lists = [
        _ring_layers(module, {f"{name}.{key}": child for key, child in found.named_children()})
        for name, found in module.named_modules()
        if isinstance(found, nn.ModuleList | nn.Sequential)
    ]
    if lists:
        yield max(lists, key=_saved_bytes)


def _saved_bytes(layers: Sequence[RingLayer]) -> int:
    sizes = [layer.bytes for layer in layers]
    return sum(sizes) - 2 * max(sizes, default=0)


def _ring_layers(module: nn.Module, layers: Mapping[str, nn.Module]) -> tuple[RingLayer, ...]:
    inner = {part for layer in layers.values() for part in layer.modules()}
    owners = Counter(parameter for layer in layers.values() for parameter in set(layer.parameters()))
    outside = {
        parameter for part in module.modules() if part not in inner for parameter in part.parameters(False)
    }
    found = []
    for name, layer in layers.items():
        own = tuple(
            parameter
            for parameter in dict.fromkeys(layer.parameters())
            if owners[parameter] == 1
            and parameter not in outside
            and parameter.numel()
            and parameter.is_contiguous()
        )
        if own:
            found.append(_layer(name, layer, own))
    return tuple(found)


def _layer(name: str, module: nn.Module, parameters: tuple[nn.Parameter, ...]) -> RingLayer:
    offsets, end = [], 0
    for parameter in parameters:
        offsets.append(end)
        end += math.ceil(parameter.nbytes / ALIGNMENT_BYTES) * ALIGNMENT_BYTES
    shapes = tuple(parameter.shape for parameter in parameters)
    return RingLayer(name, module, parameters, shapes, tuple(offsets), end)


def count_bytes(module: nn.Module) -> int:
    """Return the bytes of all parameters and buffers."""
    tensors: set[Tensor] = {*module.parameters(), *module.buffers()}
    return sum(tensor.nbytes for tensor in tensors)


def nothing_like(parameter: Tensor, device: torch.device) -> Tensor:
    """Return the placeholder of a parameter that is not on the device: computing with it raises an error."""
    return torch.empty(0, dtype=parameter.dtype, device=device)
