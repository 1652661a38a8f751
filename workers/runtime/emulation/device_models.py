"""Emulated accelerators: how long a declared device computes.

A fixed cost and a cost per local sample (docs/protocols.md, 3.1), a part of it in the forward pass and the
rest in the backward pass; what codecs take. What a device sends goes over the links of its server: nothing
here says how long that takes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from communication.library.codec_names import LOSSY
from communication.library.codecs import WIRE_FORMATS, gpu_codec
from communication.profiles.codec import CodecProfile, Device
from workers.runtime.emulation.emulated_codecs import CodecTable

#: A backward pass computes gradients of inputs and of weights, each about as dear as the forward pass.
FORWARD_SHARE = 1 / 3


def _library_codecs() -> dict[tuple[str, Device], CodecProfile]:
    """As they were published for a GPU; what its server's processors encode takes the host's own time."""
    return {(name, Device.GPU): gpu_codec(name) for name in LOSSY}


def _codec(message: Mapping[str, Any]) -> tuple[tuple[str, Device], CodecProfile]:
    name, device = str(message["codec"]), Device(message["device"])
    table = CodecProfile(
        name,
        device,
        WIRE_FORMATS[name],
        np.array(message["elements"], dtype=np.int64),
        np.array(message["encode_seconds"], dtype=np.float64),
        np.array(message["decode_seconds"], dtype=np.float64),
    )
    return (name, device), table


@dataclass(frozen=True)
class DeviceModel:
    """How long a declared accelerator computes.

    Attributes:
        forward_share: of an iteration's computing, the part that is over when the backward pass begins.
        gradient_shares: of the backward pass, by a gradient's name; where none are told, gradients take as
            much as they have elements.
        codecs: what encoding and decoding take; those of the library where none are told.
    """

    fixed_seconds: float
    seconds_per_sample: float
    forward_share: float = FORWARD_SHARE
    gradient_shares: Mapping[str, float] = field(default_factory=dict)
    codecs: CodecTable = field(default_factory=_library_codecs)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> DeviceModel:
        """Read the `model` of an emulated device.

        Raises:
            KeyError: a field is missing, or a codec unknown.
            ValueError: a codec's table is none.
        """
        return cls(
            fixed_seconds=float(message["fixed_seconds"]),
            seconds_per_sample=float(message["seconds_per_sample"]),
            forward_share=float(message.get("forward_share", FORWARD_SHARE)),
            gradient_shares={
                name: float(share) for name, share in message.get("gradient_shares", {}).items()
            },
            codecs=_library_codecs() | dict(map(_codec, message.get("codecs", ()))),
        )

    def compute_seconds(self, local_batch: int) -> float:
        """Forward and backward pass of `local_batch` samples."""
        return self.fixed_seconds + self.seconds_per_sample * local_batch
