"""Holds the passes of a model to the pace of an emulated device.

Gradients are really computed, and each becomes ready no earlier than on the declared device. The forward pass
takes its time as a whole. The backward pass takes its time tensor by tensor, in the device model's shares or
else in proportion to their elements. The all-reduce of the first gradients thus overlaps with the computation
of the last.
"""

from __future__ import annotations

from torch import Tensor, nn

from workers.runtime.emulation.device_models import DeviceModel
from workers.runtime.emulation.emulated_network import Emulation


class Pace:
    """Holds a model's passes to the pace of a device."""

    def __init__(self, emulation: Emulation, model: DeviceModel, local_batch: int, module: nn.Module) -> None:
        self.clock = emulation.clock
        self._emulation = emulation
        self._begun = False
        self.compute_seconds = model.compute_seconds(local_batch)
        self._forward_seconds = model.forward_share * self.compute_seconds
        self._left_seconds = 0.0
        self._iteration_seconds = self.compute_seconds
        self._started = self.clock.at
        shares = {
            name: model.gradient_shares.get(name, 0.0) if model.gradient_shares else parameter.numel()
            for name, parameter in module.named_parameters()
            if parameter.requires_grad
        }
        backward_seconds = self.compute_seconds - self._forward_seconds
        total = sum(shares.values())
        for name, parameter in module.named_parameters():
            if name not in shares:
                continue
            seconds = backward_seconds * shares[name] / total
            # The hook runs before the gradient is accumulated, so before it can be sent.
            parameter.register_hook(lambda gradient, seconds=seconds: self._gradient_ready(gradient, seconds))

    @property
    def received_at(self) -> float:
        """Emulated time when this iteration's last message is received and decoded; at least now."""
        return max(self.clock.at, self._emulation.received_at, self.clock.coded_until)

    def begin(self) -> None:
        """Begin an iteration."""
        self._begun = True
        self.clock.begin(self._iteration_seconds)
        self._started = self.clock.at

    def forward_done(self) -> None:
        """Wait until the emulated device has done the forward pass."""
        if self._begun:
            self.clock.spend(self._forward_seconds)

    def backward_begins(self) -> None:
        """Let each later gradient wait for the device."""
        if self._begun:
            self._left_seconds = self.compute_seconds - self._forward_seconds

    def _gradient_ready(self, _gradient: Tensor, seconds: float) -> None:
        seconds = min(seconds, self._left_seconds)
        if seconds > 0:
            self._left_seconds -= seconds
            self.clock.spend(seconds)

    def backward_done(self) -> None:
        """End the backward pass. Parameters without a gradient take their time too."""
        seconds, self._left_seconds = self._left_seconds, 0.0
        if seconds > 0:
            self.clock.spend(seconds)
        self.clock.backward_done()

    def end(self) -> None:
        """End the iteration, no earlier than its last message was received."""
        self._begun = False
        self.clock.reach(self._emulation.received_at)
        self._iteration_seconds = max(self.compute_seconds, self.clock.at - self._started)

    def passes(self, seconds: float) -> None:
        """Let emulated time pass for real work of `seconds` between two iterations."""
        self.clock.passes(seconds)
