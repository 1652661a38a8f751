"""A bit for each element, eight of them in a byte."""

from __future__ import annotations

import torch
from torch import Tensor


def pack(bits: Tensor) -> Tensor:
    """Bytes of flat bits. With m bytes, bit b of byte i is that of element b * m + i, so that all of it is
    done on runs of neighbours."""
    width = -(-len(bits) // 8)
    padded = torch.zeros(8 * width, dtype=torch.uint8, device=bits.device)
    padded[: len(bits)] = bits
    planes = padded.view(8, width)
    packed = planes[0].clone()
    for place in range(1, 8):
        packed |= planes[place] << place
    return packed


def unpack(packed: Tensor, count: int) -> Tensor:
    """The first ``count`` bits, as they were packed."""
    planes = [(packed >> place) & 1 for place in range(8)]
    return torch.cat(planes)[:count].bool()
