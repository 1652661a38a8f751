"""The hash bitmap: one bit for each index that a server owns, wherever it lies (Zen 3.3.4, Algorithm 3.3).

Worker and server both know which indices a partition has, in ascending order; so a bit for each of them says
which are not zero, and all servers' bitmaps together have one bit for each element, however many servers
there are.
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
    """The bitmap of a partition's aggregated gradients, in the order of its members: bit t in byte t >> 3 at
    place t & 7, zeros up to the whole byte."""
    return np.packbits(values != 0, bitorder="little")


def bitmap_decode(bitmap: NDArray[np.uint8], members: NDArray[np.integer]) -> Indices:
    """The indices whose bits are ones."""
    bits = np.unpackbits(bitmap, count=len(members), bitorder="little")
    return members[np.flatnonzero(bits)].astype(np.int64)


def bitmap_bytes(members: int) -> int:
    """Bytes of a partition's bitmap."""
    return -(-members // 8)


@dataclass(frozen=True)
class Packet:
    """What one server sends each worker of one tensor: header, bitmap, and the values whose bits are ones.

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
        """The packet on the wire; values are FP32, little-endian."""
        header = HEADER.pack(self.tensor, self.server, self.epoch, self.members, len(self.values))
        return header + self.bitmap.tobytes() + self.values.astype("<f4", copy=False).tobytes()

    def indices(self, members: NDArray[np.integer]) -> Indices:
        """The indices of its values. Raises ValueError where the partition is another one."""
        if len(members) != self.members:
            raise ValueError(f"a bitmap of {self.members} bits for a partition of {len(members)}")
        return bitmap_decode(self.bitmap, members)


def packet_of(tensor: int, server: int, epoch: int, aggregated: NDArray[np.float32]) -> Packet:
    """The packet of a partition's aggregated gradients, in the order of its members. What has cancelled to
    zero is not sent."""
    bitmap = bitmap_encode(aggregated)
    return Packet(tensor, server, epoch, len(aggregated), bitmap, aggregated[aggregated != 0])


def packet_from(message: bytes) -> Packet:
    """Read a packet. Raises ValueError where its lengths, its padding or its ones are not what it says."""
    if len(message) < HEADER.size:
        raise ValueError(f"a packet of {len(message)} bytes: its header alone has {HEADER.size}")
    tensor, server, epoch, members, count = HEADER.unpack_from(message)
    values_at = HEADER.size + bitmap_bytes(members)
    if len(message) != values_at + 4 * count:
        raise ValueError(f"a packet of {len(message)} bytes: its header tells {values_at + 4 * count}")
    bitmap = np.frombuffer(message, np.uint8, bitmap_bytes(members), HEADER.size)
    if int(np.bitwise_count(bitmap).sum()) != count or (members % 8 and int(bitmap[-1]) >> (members % 8)):
        raise ValueError(f"the ones of a bitmap do not belong to its {count} values of {members}")
    values = np.frombuffer(message, "<f4", count, values_at).astype(np.float32, copy=False)
    return Packet(tensor, server, epoch, members, bitmap, values)
