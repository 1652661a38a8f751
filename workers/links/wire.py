"""What a worker and the links' server say to each other: records of a fixed size through a Unix socket.

A worker has one transfer on its way in each connection: it asks, and is answered when the transfer's end is
known.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from workers.links.rates import LINKS, TRAFFIC

#: Name of the socket in a worker's box.
SOCKET_NAME = "links.sock"
#: A larger transfer is asked for in pieces, so that others of its class get their turn.
PIECE_BYTES = 4 << 20

_REQUEST = struct.Struct("<BBId")
_ANSWER = struct.Struct("<d")
REQUEST_BYTES = _REQUEST.size
ANSWER_BYTES = _ANSWER.size


@dataclass(frozen=True)
class Request:
    """A piece of a transfer, from `started` (monotonic clock) on, over all links of `path` at once."""

    traffic: str
    path: tuple[str, ...]
    size: int
    started: float

    def to_bytes(self) -> bytes:
        """The record on the wire."""
        links = sum(1 << LINKS.index(link) for link in self.path)
        return _REQUEST.pack(TRAFFIC.index(self.traffic), links, self.size, self.started)

    @classmethod
    def from_bytes(cls, record: bytes) -> Request:
        """Read a record.

        Raises:
            ValueError: it is none that a worker's runtime sends.
        """
        traffic, links, size, started = _REQUEST.unpack(record)
        path = tuple(link for place, link in enumerate(LINKS) if links & 1 << place)
        if traffic >= len(TRAFFIC) or not path or links >= 1 << len(LINKS):
            raise ValueError("a transfer over no link that there is")
        if size > PIECE_BYTES or not -1e18 < started < 1e18:
            raise ValueError("a transfer of no size or time that there is")
        return cls(TRAFFIC[traffic], path, size, started)


def answer_to_bytes(ended: float) -> bytes:
    """The answer: when the piece ended, in the server's monotonic time."""
    return _ANSWER.pack(ended)


def answer_from_bytes(record: bytes) -> float:
    """Read an answer."""
    return float(_ANSWER.unpack(record)[0])
