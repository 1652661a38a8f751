"""What codecs take on this worker's device."""

from __future__ import annotations

import time
from statistics import median

import torch
from torch import Tensor

from communication.hooks.codecs.names import CODECS, codec_named

SIZES = (1 << 12, 1 << 16, 1 << 19)
REPETITIONS = 3


def codec_fields(device: torch.device) -> list[dict[str, object]]:
    """Times of every codec but the one that does nothing, on the device where gradients are computed, as a
    record tells them."""
    values = torch.randn(SIZES[-1], generator=torch.Generator().manual_seed(0)).to(device)
    found: list[dict[str, object]] = []
    for name in CODECS:
        if name == "none":
            continue
        timed = [_timed(name, values[:size], device) for size in SIZES]
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


def _timed(name: str, values: Tensor, device: torch.device) -> tuple[float, float]:
    """Seconds to encode a gradient, what was not sent taken from it, and to decode one payload."""
    codec = codec_named(name)
    encodes, decodes = [], []
    sums = torch.zeros_like(values)
    for number in range(REPETITIONS + 1):
        left = values.clone()
        begun = _now(device)
        payload = codec.encode(left, number)
        codec.add(payload, left, -1.0)
        encoded = _now(device)
        codec.add(payload, sums)
        decodes.append(_now(device) - encoded)
        encodes.append(encoded - begun)
    return median(encodes[1:]), median(decodes[1:])


def _now(device: torch.device) -> float:
    if device.type == "cuda":
        torch.cuda.synchronize(device)
    return time.perf_counter()
