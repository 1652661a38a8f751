"""The experts on a server's device. All experts are in host memory and are swapped in (Lina 6.2)."""

from __future__ import annotations

import threading
import time
from collections.abc import Collection, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import torch
from torch import Tensor, nn
from torch.func import functional_call

from punctual.moe import MoELayer

Weights = dict[str, Tensor]


class HeldExperts:
    """Experts of all layers on one device.

    Swapping runs in a separate thread, beside the computation of the previous layer. A CPU device, which
    stands for an accelerator, gets copies as well.

    Attributes:
        swaps: number of experts swapped in since the start.
        swap_seconds: time of these swaps.
        waited_seconds: time in which a batch waited for swaps.
    """

    def __init__(self, layers: Sequence[MoELayer], device: torch.device) -> None:
        """Take layers whose experts are in host memory; none is on the device yet."""
        self.swaps, self.swap_seconds, self.waited_seconds = 0, 0.0, 0.0
        self._device = device
        self._modules: list[list[nn.Module]] = [list(layer.experts) for layer in layers]
        for module in (each for modules in self._modules for each in modules):
            if device.type == "cuda":
                _pin(module)
        self._weights: list[dict[int, Weights]] = [{} for _ in layers]
        self._pending: dict[int, Future[None]] = {}
        self._lock = threading.Lock()
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="swap")

    def bring(self, layer: int, experts: Collection[int]) -> None:
        """Begin to swap in the experts that a layer needs, and drop its others."""
        self._finish(layer)
        held = self._weights[layer]
        for expert in held.keys() - set(experts):
            del held[expert]
        missing = sorted(set(experts) - held.keys())
        if missing:
            self._pending[layer] = self._thread.submit(self._swap_in, layer, missing)

    def wait(self, layer: int) -> None:
        """Wait until the layer's experts are on the device."""
        began_at = time.monotonic()
        if self._finish(layer):
            self.waited_seconds += time.monotonic() - began_at

    def compute(self, layer: int, expert: int, rows: Tensor) -> Tensor:
        """Return the outputs of an expert that is on the device."""
        module, weights = self._modules[layer][expert], self._weights[layer][expert]
        own = next(iter(weights.values()), rows).dtype
        with torch.autocast(rows.device.type, rows.dtype, enabled=rows.dtype != own):
            outputs: Tensor = functional_call(module, weights, (rows,))
        return outputs

    def close(self) -> None:
        """End the thread."""
        self._thread.shutdown(wait=False, cancel_futures=True)

    def _finish(self, layer: int) -> bool:
        pending = self._pending.pop(layer, None)
        if pending is not None:
            pending.result()
        return pending is not None

    def _swap_in(self, layer: int, experts: Sequence[int]) -> None:
        began_at = time.monotonic()
        found = {expert: self._copies(self._modules[layer][expert]) for expert in experts}
        with self._lock:
            self.swaps += len(experts)
            self.swap_seconds += time.monotonic() - began_at
        self._weights[layer].update(found)

    def _copies(self, module: nn.Module) -> Weights:
        stream = torch.cuda.Stream(self._device) if self._device.type == "cuda" else None
        with torch.inference_mode(), torch.cuda.stream(stream):
            named = {**dict(module.named_parameters()), **dict(module.named_buffers())}
            copies = {
                name: each.to(self._device, non_blocking=True, copy=True) for name, each in named.items()
            }
        if stream is not None:
            stream.synchronize()
        return copies


def _pin(module: nn.Module) -> None:
    for tensor in (*module.parameters(), *module.buffers()):
        tensor.data = tensor.data.pin_memory()


def move_without_experts(module: nn.Module, layers: Collection[MoELayer], device: torch.device) -> None:
    """Move a model to a device, but leave the experts of its layers in host memory."""
    kept = {layer: layer.experts for layer in layers}
    for layer in kept:
        layer.experts = nn.ModuleList()
    try:
        module.to(device)
    finally:
        for layer, experts in kept.items():
            layer.experts = experts
