"""Computing times of emulated accelerators.

An iteration has a fixed cost and a cost per local sample (docs/protocols.md, 3.1), divided between the
forward and the backward pass. Codecs have separate times. Sending goes over the server's links and is not
part of these models.
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

#: A backward pass computes gradients of inputs and of weights, each at about the cost of the forward pass.
FORWARD_SHARE = 1 / 3


def _library_codecs() -> dict[tuple[str, Device], CodecProfile]:
    """Return the codecs' published times on a GPU; codecs on CPUs take the host's real time."""
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
    """Computing times of a declared accelerator.

    Attributes:
        fixed_seconds: cost of an iteration without samples.
        seconds_per_sample: cost of each local sample.
        forward_share: share of an iteration's computing time in the forward pass.
        gradient_shares: shares of the backward pass by a gradient's name; if empty, shares are proportional
            to the gradients' elements.
        codecs: times of encoding and decoding; by default the library's.
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
            KeyError: a field is missing, or a codec is unknown.
            ValueError: a codec's table is invalid.
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
        """Return the seconds of the forward and backward pass of `local_batch` samples."""
        return self.fixed_seconds + self.seconds_per_sample * local_batch
