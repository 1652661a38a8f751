"""OneBit: whether each element is negative, and the means of negative and other elements (Seide and others,
2014)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from communication.hooks.codecs.bits import pack, unpack
from communication.hooks.codecs.interface import Codec, not_finite, read


class OneBit(Codec):
    """Decodes to one of two means. The mean of no elements is 0."""

    name = "onebit"

    def _encode(self, values: Tensor, seed: int) -> Sequence[Tensor]:
        negative = values < 0
        means = torch.stack([_mean(values, negative), _mean(values, ~negative)])
        return means + not_finite(values), pack(negative)

    def _add(self, payload: Tensor, into: Tensor, factor: float) -> None:
        means = read(payload, 0, 2, torch.float32) * factor
        into.add_(torch.where(unpack(payload[8:], len(into)), means[0], means[1]))


def _mean(values: Tensor, among: Tensor) -> Tensor:
    """Return the mean of the selected values."""
    return torch.where(among, values, 0.0).sum() / among.sum().clamp(min=1)
