"""FP16: every value rounded to half precision."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from communication.hooks.codecs.interface import Codec, read

_LARGEST = torch.finfo(torch.float16).max


class HalfPrecision(Codec):
    """Rounds to FP16. Finite values stay finite: error feedback sends the excess later.

    PyTorch's own hook (`fp16_compress_hook`) does not fit: it all-reduces buckets of DDP.
    """

    name = "fp16"

    def _encode(self, values: Tensor, seed: int) -> Sequence[Tensor]:
        limited = values.clamp(-_LARGEST, _LARGEST)
        return (torch.where(values.isinf(), values, limited).half(),)

    def _add(self, payload: Tensor, into: Tensor, factor: float) -> None:
        into.add_(read(payload, 0, len(into), torch.float16).float(), alpha=factor)
