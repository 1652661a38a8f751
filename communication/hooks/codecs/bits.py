"""One bit per element, eight in a byte."""

from __future__ import annotations

import torch
from torch import Tensor


def pack(bits: Tensor) -> Tensor:
    """Return flat bits as bytes. With m bytes, bit b of byte i is that of element b * m + i, so that all
    operations work on contiguous runs."""
    width = -(-len(bits) // 8)
    padded = torch.zeros(8 * width, dtype=torch.uint8, device=bits.device)
    padded[: len(bits)] = bits
    planes = padded.view(8, width)
    packed = planes[0].clone()
    for place in range(1, 8):
        packed |= planes[place] << place
    return packed


def unpack(packed: Tensor, count: int) -> Tensor:
    """Return the first ``count`` bits that `pack` packed."""
    planes = [(packed >> place) & 1 for place in range(8)]
    return torch.cat(planes)[:count].bool()
