"""Emulated accelerators: how long a declared device computes.

A fixed cost and a cost per local sample (docs/protocols.md, 3.1), a part of it in the forward pass and the
rest in the backward pass. What a device sends goes over the links of its server: nothing here says how long
that takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

#: A backward pass computes gradients of inputs and of weights, each about as dear as the forward pass.
FORWARD_SHARE = 1 / 3


@dataclass(frozen=True)
class DeviceModel:
    """How long a declared accelerator computes.

    Attributes:
        forward_share: of an iteration's computing, the part that is over when the backward pass begins.
    """

    fixed_seconds: float
    seconds_per_sample: float
    forward_share: float = FORWARD_SHARE

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> DeviceModel:
        """Read the `model` of an emulated device.

        Raises:
            KeyError: a field is missing.
        """
        return cls(
            fixed_seconds=float(message["fixed_seconds"]),
            seconds_per_sample=float(message["seconds_per_sample"]),
            forward_share=float(message.get("forward_share", FORWARD_SHARE)),
        )

    def compute_seconds(self, local_batch: int) -> float:
        """Forward and backward pass of `local_batch` samples."""
        return self.fixed_seconds + self.seconds_per_sample * local_batch
