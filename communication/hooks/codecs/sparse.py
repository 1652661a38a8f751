"""The base class of codecs that send some of the values, with their indices."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence

import torch
from torch import Tensor

from communication.hooks.codecs.interface import Codec, not_finite, read

_MOST_ELEMENTS = 1 << 31


class SparseCodec(Codec):
    """Sends k values and their 32-bit indices. If fewer are selected, zeros at index 0 pad them."""

    @property
    def exact(self) -> bool:
        """Whether all values are sent."""
        return self.wire.kept_share == 1.0

    def sent(self, payload: Tensor, elements: int) -> tuple[Tensor, Tensor]:
        """Return the indices and values in the payload of `elements` elements. Indices are distinct except 0,
        which may be padding."""
        kept = self.wire.kept(elements)
        indices = read(payload, 4 * kept, kept, torch.int32)
        return indices.long(), read(payload, 0, kept, torch.float32)

    def forget(self, payload: Tensor, row: Tensor) -> None:
        """Set a row to 0 at the places of the payload's values. A payload that is not finite sent none."""
        indices, values = self.sent(payload, len(row))
        was_sent = (values != 0) & values.isfinite()
        row.index_add_(0, indices, torch.where(was_sent, -row[indices], 0.0))

    @abstractmethod
    def select(self, values: Tensor, kept: int, seed: int) -> Tensor:
        """Return the distinct indices of the values to send, padded with -1 to ``kept``."""

    def _encode(self, values: Tensor, seed: int) -> Sequence[Tensor]:
        if len(values) >= _MOST_ELEMENTS:
            raise ValueError(
                f"there are {len(values)} elements; a payload must have fewer than {_MOST_ELEMENTS}"
            )
        indices = self.select(values, self.wire.kept(len(values)), seed)
        found, indices = indices >= 0, indices.clamp(min=0)
        return torch.where(found, values[indices], 0.0) + not_finite(values), indices.int()

    def _add(self, payload: Tensor, into: Tensor, factor: float) -> None:
        indices, values = self.sent(payload, len(into))
        into.index_add_(0, indices, values, alpha=factor)
        into.add_(not_finite(values))
