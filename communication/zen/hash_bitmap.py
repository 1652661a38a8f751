"""The hash bitmap: one bit for each index that a server owns, at any place (Zen 3.3.4, Algorithm 3.3).

Worker and server both know the indices of a partition in ascending order. So a bit for each suffices to mark
non-zeros, and all servers' bitmaps together have one bit per element, for any number of servers.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from communication.zen.indices import Indices, Values

HEADER = struct.Struct("<IHIII")
"""Of a packet: tensor, server, epoch, bits, values; little-endian, without padding."""


def bitmap_encode(values: Values) -> NDArray[np.uint8]:
    """Return the bitmap of a partition's aggregated gradients, in the order of its members: bit t in byte
    t >> 3 at place t & 7, padded with zeros."""
    return np.packbits(values != 0, bitorder="little")


def bitmap_decode(bitmap: NDArray[np.uint8], members: NDArray[np.integer]) -> Indices:
    """Return the indices whose bits are set."""
    bits = np.unpackbits(bitmap, count=len(members), bitorder="little")
    return members[np.flatnonzero(bits)].astype(np.int64)


def bitmap_bytes(members: int) -> int:
    """Return the size of a partition's bitmap."""
    return -(-members // 8)


@dataclass(frozen=True)
class Packet:
    """One server's message to each worker for one tensor: header, bitmap, and the values of set bits.

    Attributes:
        epoch: of the hash family: partitions change with the number of servers.
        members: bits of the bitmap.
    """

    tensor: int
    server: int
    epoch: int
    members: int
    bitmap: NDArray[np.uint8]
    values: NDArray[np.float32]

    def to_bytes(self) -> bytes:
        """Encode the packet; values are FP32, little-endian."""
        header = HEADER.pack(self.tensor, self.server, self.epoch, self.members, len(self.values))
        return header + self.bitmap.tobytes() + self.values.astype("<f4", copy=False).tobytes()

    def indices(self, members: NDArray[np.integer]) -> Indices:
        """Return the indices of its values. Raises ValueError for another partition."""
        if len(members) != self.members:
            raise ValueError(f"a bitmap of {self.members} bits for a partition of {len(members)}")
        return bitmap_decode(self.bitmap, members)


def packet_of(tensor: int, server: int, epoch: int, aggregated: NDArray[np.float32]) -> Packet:
    """Return the packet of a partition's aggregated gradients, in the order of its members. Sums of zero are
    not sent."""
    bitmap = bitmap_encode(aggregated)
    return Packet(tensor, server, epoch, len(aggregated), bitmap, aggregated[aggregated != 0])


def packet_from(message: bytes) -> Packet:
    """Parse a packet. Raises ValueError if its lengths, padding or set bits do not match its header."""
    if len(message) < HEADER.size:
        raise ValueError(f"a packet has {len(message)} bytes; its header alone has {HEADER.size}")
    tensor, server, epoch, members, count = HEADER.unpack_from(message)
    values_at = HEADER.size + bitmap_bytes(members)
    if len(message) != values_at + 4 * count:
        raise ValueError(
            f"a packet has {len(message)} bytes; by its header it must have {values_at + 4 * count}"
        )
    bitmap = np.frombuffer(message, np.uint8, bitmap_bytes(members), HEADER.size)
    if int(np.bitwise_count(bitmap).sum()) != count or (members % 8 and int(bitmap[-1]) >> (members % 8)):
        raise ValueError(f"the ones of a bitmap do not belong to its {count} values of {members}")
    values = np.frombuffer(message, "<f4", count, values_at).astype(np.float32, copy=False)
    return Packet(tensor, server, epoch, members, bitmap, values)
