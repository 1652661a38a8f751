"""Deep Gradient Compression: the values of largest magnitude (Lin and others, 2018).

`communication/hooks/feedback.py` keeps its momentum, together with what was not sent.
"""

from __future__ import annotations

import torch
from torch import Tensor

from communication.hooks.codecs.random_k import mixed
from communication.hooks.codecs.sparse import SparseCodec

#: Below this number of elements the selection is exact.
EXACT_BELOW = 16384
#: Above it a sample gives a threshold: 1 % of the elements, 0.1 % above this size.
_LARGE = 1 << 20
_ADAPTATIONS = 4
_TOO_FEW, _TOO_MANY = 0.7, 1.3
_LEAST = torch.finfo(torch.float32).tiny


class DGC(SparseCodec):
    """Sends the values that reach a threshold, found in a sample; of more than k values the k largest."""

    name = "dgc"

    def select(self, values: Tensor, kept: int, seed: int) -> Tensor:
        """`SparseCodec.select`."""
        magnitudes = values.abs()
        if len(values) < EXACT_BELOW or 2 * kept >= len(values):
            return torch.topk(magnitudes, kept, sorted=False).indices
        threshold = _threshold(magnitudes, kept, seed)
        # `room` is fixed, so that the device needs no synchronisation with the host.
        room = min(len(values), int(_TOO_MANY * kept) + 1)
        candidates = torch.nonzero_static(magnitudes >= threshold, size=room, fill_value=-1).view(-1)
        found = torch.where(candidates >= 0, magnitudes[candidates.clamp(min=0)], -1.0)
        return candidates[torch.topk(found, kept, sorted=False).indices]


def _threshold(magnitudes: Tensor, kept: int, seed: int) -> Tensor:
    """Return a threshold that about ``kept`` elements reach, and no zeros.

    A sample gives the first estimate. It is adjusted up to four times while far too many or too few elements
    reach it: by a factor, and by bisection once it is bracketed. Rather too many than too few.
    """
    elements = len(magnitudes)
    sampled = max(1, elements // (100 if elements <= _LARGE else 1000))
    numbers = torch.arange(sampled, dtype=torch.int64, device=magnitudes.device)
    sample = magnitudes[mixed(numbers, seed) * elements >> 32]
    threshold = torch.topk(sample, max(1, sampled * kept // elements)).values[-1].clamp(min=_LEAST)
    low, high = torch.full_like(threshold, _LEAST), torch.full_like(threshold, torch.inf)
    for _ in range(_ADAPTATIONS):
        reached = (magnitudes >= threshold).sum()
        few, many = reached < _TOO_FEW * kept, reached > _TOO_MANY * kept
        high, low = torch.where(few, threshold, high), torch.where(many, threshold, low)
        middle = (low * high).sqrt()
        lower = torch.where(low > _LEAST, middle, threshold * _TOO_FEW)
        higher = torch.where(high < torch.inf, middle, threshold * _TOO_MANY)
        threshold = torch.where(few, lower, torch.where(many, higher, threshold)).clamp(min=_LEAST)
    return torch.where((magnitudes >= threshold).sum() < _TOO_FEW * kept, low, threshold)
