"""EF-SignSGD: the sign of each element and the mean magnitude (Karimireddy and others, 2019)."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from communication.hooks.codecs.bits import pack, unpack
from communication.hooks.codecs.interface import Codec, read


class SignSGD(Codec):
    """Decodes to plus or minus the mean magnitude; the sign of zero is plus."""

    name = "ef-signsgd"

    def _encode(self, values: Tensor, seed: int) -> Sequence[Tensor]:
        return values.abs().mean().view(1), pack(values < 0)

    def _add(self, payload: Tensor, into: Tensor, factor: float) -> None:
        mean = read(payload, 0, 1, torch.float32) * factor
        into.add_(torch.where(unpack(payload[4:], len(into)), -mean, mean))
