"""The protocol between a worker and the link server: records of a fixed size through a Unix socket.

Each connection has one transfer in progress: a request, answered once the transfer's end is known.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass

from emulated_links.rates import LINKS, TRAFFIC

#: Name of the socket in a worker's box.
SOCKET_NAME = "links.sock"
#: Larger transfers are requested in pieces, so that others of the class get their turn.
PIECE_BYTES = 4 << 20

_REQUEST = struct.Struct("<BBId")
_ANSWER = struct.Struct("<d")
REQUEST_BYTES = _REQUEST.size
ANSWER_BYTES = _ANSWER.size


@dataclass(frozen=True)
class Request:
    """A piece of a transfer that began at `started` (monotonic clock), over all links of `path` at once."""

    traffic: str
    path: tuple[str, ...]
    size: int
    started: float

    def to_bytes(self) -> bytes:
        """Encode the record."""
        links = sum(1 << LINKS.index(link) for link in self.path)
        return _REQUEST.pack(TRAFFIC.index(self.traffic), links, self.size, self.started)

    @classmethod
    def from_bytes(cls, record: bytes) -> Request:
        """Parse a record.

        Raises:
            ValueError: it is malformed.
        """
        traffic, links, size, started = _REQUEST.unpack(record)
        path = tuple(link for place, link in enumerate(LINKS) if links & 1 << place)
        if traffic >= len(TRAFFIC) or not path or links >= 1 << len(LINKS):
            raise ValueError("a transfer over no link that there is")
        if size > PIECE_BYTES or not -1e18 < started < 1e18:
            raise ValueError("a transfer of no size or time that there is")
        return cls(TRAFFIC[traffic], path, size, started)


def answer_to_bytes(ended: float) -> bytes:
    """Encode an answer: when the piece ends, in the server's monotonic time."""
    return _ANSWER.pack(ended)


def answer_from_bytes(record: bytes) -> float:
    """Parse an answer."""
    return float(_ANSWER.unpack(record)[0])
