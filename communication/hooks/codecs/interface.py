"""The interface of codecs."""

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
    """Encodes flat FP32 gradients into payloads whose sizes depend only on the number of elements.

    A payload is a flat tensor of bytes on the input's device. All computation stays there, without waiting
    for the host. The same values and seed give the same payload on every rank. A value that is not finite
    always shows: in its place if the codec sends all values, else in all places of the payload.

    Attributes:
        name: in profiles and plans. wire: its wire format. exact: whether decoding restores the input.
    """

    name: ClassVar[str]

    def __init__(self, wire: WireFormat | None = None) -> None:
        """Args: wire: other than the library's, such as another share of values."""
        self.wire = WIRE_FORMATS[self.name] if wire is None else wire

    @property
    def exact(self) -> bool:
        """Whether decoding restores the input."""
        return False

    def payload_bytes(self, elements: int) -> int:
        """Return the size of the payload of ``elements`` elements."""
        return _bytes(self.wire, elements)

    def encode(self, values: Tensor, seed: int) -> Tensor:
        """Return the payload of flat FP32 values, which stay unchanged.

        ``seed``: for codecs with random choices; equal on all ranks that are to choose alike.
        """
        if not len(values):
            return values.new_empty(0, dtype=torch.uint8)
        return torch.cat([part.contiguous().view(torch.uint8) for part in self._encode(values, seed)])

    def decode(self, payload: Tensor, into: Tensor) -> None:
        """Overwrite ``into`` with the values of its payload."""
        into.zero_()
        self.add(payload, into)

    def add(self, payload: Tensor, into: Tensor, factor: float = 1.0) -> None:
        """Add to ``into`` the values of its payload, times a factor."""
        if len(into):
            self._add(payload, into, factor)

    @abstractmethod
    def _encode(self, values: Tensor, seed: int) -> Sequence[Tensor]:
        """Return the parts of the payload of at least one element."""

    @abstractmethod
    def _add(self, payload: Tensor, into: Tensor, factor: float) -> None:
        """`add` for at least one element."""


@lru_cache(maxsize=1 << 14)
def _bytes(wire: WireFormat, elements: int) -> int:
    return wire.bytes(elements)


def not_finite(values: Tensor) -> Tensor:
    """Return 0 if all values are finite, else NaN, as a scalar on their device."""
    lowest, highest = values.aminmax()
    return (lowest - lowest) + (highest - highest)


def read(payload: Tensor, first_byte: int, count: int, dtype: torch.dtype) -> Tensor:
    """Return numbers from a payload, which may lie unaligned in a larger one."""
    part = payload[first_byte : first_byte + count * dtype.itemsize]
    aligned = (part.storage_offset() % dtype.itemsize) == 0
    return (part if aligned else part.clone()).view(dtype)
