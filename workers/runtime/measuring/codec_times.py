"""Times of codecs on this worker's device."""

from __future__ import annotations

from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from communication.hooks.codecs.names import CODECS, codec_named
from communication.hooks.device_time import Course
from communication.profiles.codec import Device

SIZES = (1 << 12, 1 << 14, 1 << 15, 1 << 16, 1 << 19)
REPETITIONS = 3


def codec_fields(device: torch.device, courses: Callable[[], Course] = Course) -> list[dict[str, object]]:
    """Return the times of every codec except "none" on the gradients' device, as in a record.

    Args:
        courses: makes a clock of that device's time.
    """
    values = torch.randn(SIZES[-1], generator=torch.Generator().manual_seed(0)).to(device)
    found: list[dict[str, object]] = []
    for name in CODECS:
        if name == "none":
            continue
        timed = [_timed(name, values[:size], device, courses()) for size in SIZES]
        found.append(
            {
                "codec": name,
                "device": "gpu",
                "elements": list(SIZES),
                "encode_seconds": [encode for encode, _ in timed],
                "decode_seconds": [decode for _, decode in timed],
            }
        )
    return found


def _timed(name: str, values: Tensor, device: torch.device, course: Course) -> tuple[float, float]:
    """Return the seconds to encode a gradient, including the residual, and to decode one payload."""
    codec = codec_named(name)
    encodes, decodes = [], []
    sums = torch.zeros_like(values)
    for number in range(REPETITIONS + 1):
        left = values.clone()
        begun = _now(device, course)
        payload = codec.encode(left, number)
        codec.add(payload, left, -1.0)
        course.coded("encode", name, Device.GPU, len(values))
        encoded = _now(device, course)
        codec.add(payload, sums)
        course.coded("decode", name, Device.GPU, len(values))
        decodes.append(_now(device, course) - encoded)
        encodes.append(encoded - begun)
    return median(encodes[1:]), median(decodes[1:])


def _now(device: torch.device, course: Course) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return course.at
