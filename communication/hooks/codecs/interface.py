"""What a codec does."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from functools import lru_cache
from typing import ClassVar

import torch
from torch import Tensor

from communication.library.codecs import WIRE_FORMATS
from communication.profiles.codec import WireFormat


class Codec(ABC):
    """Encodes flat FP32 gradients into payloads whose sizes are known from the number of elements alone.

    A payload is a flat tensor of bytes on the device of what was encoded. All of it is computed there:
    nothing waits for the host. Same values and seed give the same payload on every rank. A value that is not
    finite always shows: in its place if the codec sends all values, else in all places of the payload.

    Attributes:
        name: as profiles and plans call it. wire: what it sends. exact: whether decoding gives back what was
            encoded.
    """

    name: ClassVar[str]

    def __init__(self, wire: WireFormat | None = None) -> None:
        """``wire``: other than the library's, such as another share of values."""
        self.wire = WIRE_FORMATS[self.name] if wire is None else wire

    @property
    def exact(self) -> bool:
        """Whether decoding gives back what was encoded."""
        return False

    def payload_bytes(self, elements: int) -> int:
        """Bytes of the payload of so many elements."""
        return _bytes(self.wire, elements)

    def encode(self, values: Tensor, seed: int) -> Tensor:
        """The payload of flat FP32 values, which stay as they are.

        ``seed``: for codecs that choose by chance; the same on all ranks where they are to choose alike.
        """
        if not len(values):
            return values.new_empty(0, dtype=torch.uint8)
        return torch.cat([part.contiguous().view(torch.uint8) for part in self._encode(values, seed)])

    def decode(self, payload: Tensor, into: Tensor) -> None:
        """Write over ``into`` what the payload of so many elements holds."""
        into.zero_()
        self.add(payload, into)

    def add(self, payload: Tensor, into: Tensor, factor: float = 1.0) -> None:
        """Add to ``into`` what the payload holds, times a factor."""
        if len(into):
            self._add(payload, into, factor)

    @abstractmethod
    def _encode(self, values: Tensor, seed: int) -> Sequence[Tensor]:
        """The parts of which a payload consists, of at least one element."""

    @abstractmethod
    def _add(self, payload: Tensor, into: Tensor, factor: float) -> None:
        """`add` for at least one element."""


@lru_cache(maxsize=1 << 14)
def _bytes(wire: WireFormat, elements: int) -> int:
    return wire.bytes(elements)


def not_finite(values: Tensor) -> Tensor:
    """0 if all values are finite, else NaN; a scalar, on their device."""
    lowest, highest = values.aminmax()
    return (lowest - lowest) + (highest - highest)


def read(payload: Tensor, first_byte: int, count: int, dtype: torch.dtype) -> Tensor:
    """Numbers that lie in a payload. Payloads lie behind each other in larger ones, wherever they come to."""
    part = payload[first_byte : first_byte + count * dtype.itemsize]
    aligned = (part.storage_offset() % dtype.itemsize) == 0
    return (part if aligned else part.clone()).view(dtype)
