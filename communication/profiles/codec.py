"""The codec profile: a compression's wire format, and its times on a device."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite

import numpy as np

from communication.profiles.arrays import Floats, Integers, durations, whole_numbers


class Device(StrEnum):
    """The device that encodes and decodes gradients."""

    GPU = "gpu"
    CPU = "cpu"


@dataclass(frozen=True, slots=True)
class WireFormat:
    """The encoding of a tensor on the wire: some of its values, perhaps with indices, and a few more bytes.

    Attributes:
        kept_share: of the elements whose values are sent; at least one of a non-empty tensor.
        value_bits, index_bits: of each sent value. fixed_bytes: additional ones, such as a scale.

    Raises ValueError for a share outside (0, 1], or negative sizes.
    """

    kept_share: float = 1.0
    value_bits: int = 32
    index_bits: int = 0
    fixed_bytes: int = 0

    def __post_init__(self) -> None:
        if not 0.0 < self.kept_share <= 1.0:
            raise ValueError(f"kept_share is {self.kept_share}; it must be above 0 and at most 1")
        if self.value_bits < 1 or self.index_bits < 0 or self.fixed_bytes < 0:
            raise ValueError(
                "a value must have at least one bit; the bits of indices and headers must not be negative"
            )

    def kept(self, elements: int) -> int:
        """Return the number of values sent for ``elements``: their share, rounded down, and at least one."""
        return int(self.kept_of(np.array([elements]))[0])

    def bytes(self, elements: int) -> int:
        """Return the bytes on the wire. An empty tensor sends none."""
        return int(self.bytes_of(np.array([elements]))[0])

    def kept_of(self, elements: Integers) -> Integers:
        """Return `kept` of each of these tensors."""
        share = np.floor(elements * self.kept_share + 1e-9).astype(np.int64)
        kept: Integers = np.minimum(elements, np.maximum(1, share))
        return kept

    def bytes_of(self, elements: Integers) -> Integers:
        """Return `bytes` of each of these tensors."""
        sent = -(-self.kept_of(elements) * (self.value_bits + self.index_bits) // 8) + self.fixed_bytes
        return np.where(np.asarray(elements) > 0, sent, 0)

    def ratio(self, bytes_per_element: int = 4) -> float:
        """ρ: return compressed over original bytes of a large tensor."""
        return self.kept_share * (self.value_bits + self.index_bits) / (8 * bytes_per_element)


@dataclass(frozen=True, eq=False)
class CodecProfile:
    """A codec's measurements on a device.

    Attributes:
        name: of the codec. wire: its wire format. exact: whether decoding restores the input.
        elements: measured sizes, ascending, none 0. encode_seconds, decode_seconds: at these sizes, of one
            tensor and one payload.

    Times between two sizes are interpolated. Below the first size they are constant. Beyond the last they
    continue with the slope of the last two, or proportionally to a single size. An empty tensor takes none.

    Raises ValueError for rows of different lengths or none, sizes that do not ascend, negative or infinite
    times.
    """

    name: str
    device: Device
    wire: WireFormat
    elements: Integers
    encode_seconds: Floats
    decode_seconds: Floats
    exact: bool = False
    #: SHA-256 of all of the above.
    digest: str = field(init=False)

    def __post_init__(self) -> None:
        elements = whole_numbers(self.elements, "measured sizes of a codec")
        encode = durations(self.encode_seconds, "times for encoding")
        decode = durations(self.decode_seconds, "times for decoding")
        if not len(elements):
            raise ValueError(f"codec {self.name!r} has no measured size; it needs at least one")
        if not len(elements) == len(encode) == len(decode):
            raise ValueError(
                f"there are {len(elements)} sizes, {len(encode)} encode times and "
                f"{len(decode)} decode times; the numbers must be equal"
            )
        if elements[0] == 0 or np.any(np.diff(elements) <= 0):
            raise ValueError("measured sizes of a codec must ascend from above 0")
        object.__setattr__(self, "device", Device(self.device))
        object.__setattr__(self, "elements", elements)
        object.__setattr__(self, "encode_seconds", encode)
        object.__setattr__(self, "decode_seconds", decode)
        object.__setattr__(self, "digest", self._digest())

    @classmethod
    def with_threshold(
        cls,
        name: str,
        device: Device,
        wire: WireFormat,
        encode_seconds: float,
        decode_seconds: float,
        elements: int,
    ) -> CodecProfile:
        """Return a profile with times constant up to ``elements``, and proportional to the size beyond."""
        table = (np.array([elements]), np.array([encode_seconds]), np.array([decode_seconds]))
        return cls(name, device, wire, *table)

    @classmethod
    def with_rate(
        cls, name: str, device: Device, wire: WireFormat, encode_rate: float, decode_rate: float
    ) -> CodecProfile:
        """Return a profile with proportional times, from elements per second for encoding and decoding."""
        if not (isfinite(encode_rate) and isfinite(decode_rate) and min(encode_rate, decode_rate) > 0.0):
            raise ValueError(
                f"a codec's rates are {encode_rate} and {decode_rate}; they must be finite and positive"
            )
        table = (np.array([1]), np.array([1.0 / encode_rate]), np.array([1.0 / decode_rate]))
        return cls(name, device, wire, *table)

    def seconds_to_encode(self, elements: Integers | Sequence[int] | int) -> Floats:
        """Return the seconds of each of these tensors."""
        return self._seconds(self.encode_seconds, elements)

    def seconds_to_decode(self, elements: Integers | Sequence[int] | int) -> Floats:
        """Return the seconds of each of these tensors, for one payload."""
        return self._seconds(self.decode_seconds, elements)

    def _seconds(self, table: Floats, elements: Integers | Sequence[int] | int) -> Floats:
        asked = np.asarray(elements, dtype=np.float64)
        found = np.interp(asked, self.elements, table)
        last = float(self.elements[-1])
        if len(table) == 1:
            slope = float(table[0]) / last
        else:
            slope = max(0.0, float(table[-1] - table[-2]) / (last - float(self.elements[-2])))
        beyond = np.maximum(asked - last, 0.0) * slope
        return np.where(asked > 0.0, found + beyond, 0.0)

    def _digest(self) -> str:
        content = hashlib.sha256()
        heading = (self.name, self.device.value, self.exact, repr(self.wire))
        arrays = (self.elements, self.encode_seconds, self.decode_seconds)
        for part in (repr(heading).encode(), *(array.tobytes() for array in arrays)):
            content.update(len(part).to_bytes(8, "big"))
            content.update(part)
        return content.hexdigest()
