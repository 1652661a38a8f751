"""Holds the passes of a model to the pace of an emulated device.

Gradients are computed for real, and each is there no earlier than the declared device would have it: the
forward pass ends as one, the backward pass tensor by tensor, in the shares that the device model tells, else
in proportion to their elements. So the
all-reduce of the first gradients overlaps with the computing of the last.
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
            # Called with the gradient before it is accumulated, so before it can be sent.
            parameter.register_hook(lambda gradient, seconds=seconds: self._gradient_ready(gradient, seconds))

    @property
    def received_at(self) -> float:
        """When this iteration's last message came and was decoded, in emulated time; now, where all have."""
        return max(self.clock.at, self._emulation.received_at, self.clock.coded_until)

    def begin(self) -> None:
        """An iteration begins."""
        self._begun = True
        self.clock.begin(self._iteration_seconds)
        self._started = self.clock.at

    def forward_done(self) -> None:
        """The forward pass was computed: wait until the device has done so."""
        if self._begun:
            self.clock.spend(self._forward_seconds)

    def backward_begins(self) -> None:
        """From here on each gradient waits for the device."""
        if self._begun:
            self._left_seconds = self.compute_seconds - self._forward_seconds

    def _gradient_ready(self, _gradient: Tensor, seconds: float) -> None:
        seconds = min(seconds, self._left_seconds)
        if seconds > 0:
            self._left_seconds -= seconds
            self.clock.spend(seconds)

    def backward_done(self) -> None:
        """All gradients are there, and what the backward pass itself has waited for. Parameters without a
        gradient took their time all the same."""
        seconds, self._left_seconds = self._left_seconds, 0.0
        if seconds > 0:
            self.clock.spend(seconds)
        self.clock.backward_done()

    def end(self) -> None:
        """The iteration ends, and not before the last of what was exchanged came."""
        self._begun = False
        self.clock.reach(self._emulation.received_at)
        self._iteration_seconds = max(self.compute_seconds, self.clock.at - self._started)

    def passes(self, seconds: float) -> None:
        """Something other than iterations took so long, between two of them."""
        self.clock.passes(seconds)
