"""Units of a part and their values as bytes, in Zen's formats (3.3.4).

Values come first, so that they are aligned for FP32. The rest depends on the format: four bytes for each
unit's position (COO), a bit for each unit of the part (hash bitmap), or nothing if the packet has all units
of the part (dense).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from communication.hooks.codecs import bits
from communication.zen.formats import INDEX_BYTES, VALUE_BYTES, Format

#: Formats that ranks can send.
PACKET_FORMATS = (Format.COO, Format.HASH_BITMAP, Format.DENSE)


@dataclass(frozen=True, slots=True)
class Rows:
    """Non-zero units. ``places``: int64, ascending, distinct. ``values``: FP32, a row for each."""

    places: Tensor
    values: Tensor

    def __len__(self) -> int:
        return len(self.places)

    def without_zeros(self) -> Rows:
        """Return the rows with a value that is not zero. NaN is not zero."""
        is_nonzero = (self.values != 0).any(1)
        return Rows(self.places[is_nonzero], self.values[is_nonzero])


def packet_bytes(form: Format, count: int, size: int, width: int) -> int:
    """Return the size of a packet with ``count`` units of a part of ``size`` units, of ``width`` values."""
    if form is Format.DENSE:
        return VALUE_BYTES * width * size
    beside = INDEX_BYTES * count if form is Format.COO else -(-size // 8)
    return VALUE_BYTES * width * count + beside


def pack(form: Format, rows: Rows, size: int) -> Tensor:
    """Return the packet of a part's rows, which are numbered by their positions in it."""
    if form is Format.DENSE:
        whole = rows.values.new_zeros(size, rows.values.shape[1])
        whole[rows.places] = rows.values
        return _as_bytes(whole)
    if form is Format.COO:
        beside = _as_bytes(rows.places.to(torch.int32))
    else:
        there = torch.zeros(size, dtype=torch.uint8, device=rows.places.device)
        there[rows.places] = 1
        beside = bits.pack(there) if size else there
    return torch.cat([_as_bytes(rows.values), beside])


def unpack(form: Format, packet: Tensor, count: int, size: int, width: int) -> Rows:
    """Parse a packet of ``count`` rows; other bytes may follow it."""
    packet = packet[: packet_bytes(form, count, size, width)].clone()
    if form is Format.DENSE:
        whole = Rows(torch.arange(size, device=packet.device), packet.view(torch.float32).view(size, width))
        return whole.without_zeros()
    end = VALUE_BYTES * width * count
    values = packet[:end].view(torch.float32).view(count, width)
    if form is Format.COO:
        return Rows(packet[end:].view(torch.int32).long(), values)
    there = bits.unpack(packet[end:], size) if size else packet.new_zeros(0, dtype=torch.bool)
    return Rows(there.nonzero().flatten(), values)


def added_up(parts: list[Rows]) -> Rows:
    """Return the sum of rows with distinct places, added in this order, so that all ranks get the same
    bits."""
    places, inverse = torch.cat([each.places for each in parts]).unique(return_inverse=True)
    sums = parts[0].values.new_zeros(len(places), parts[0].values.shape[1])
    for each, where in zip(parts, inverse.split([len(each) for each in parts]), strict=True):
        sums[where] += each.values
    return Rows(places, sums)


def _as_bytes(content: Tensor) -> Tensor:
    return content.contiguous().view(-1).view(torch.uint8)
