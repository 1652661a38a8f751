"""The HTTP protocol of all servers: it disconnects callers that send a request or read an answer too slowly.

A slow caller occupies one connection. The number of connections is bounded for each peer and in total. The
control plane's servers (`config/serving/`) and serving workers use this protocol.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
from typing import Any, ClassVar, NoReturn

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from punctual.protocol.problems import MEDIA_TYPE, problem

#: A request may take GRACE_SECONDS plus the time of its bytes at BYTES_PER_SECOND (a 64 kbit/s line); so may
#: the unsent rest of an answer.
GRACE_SECONDS = 10.0
BYTES_PER_SECOND = 8_000
#: Maximum time of a request of any size.
REQUEST_SECONDS = 300.0
#: Request line and headers.
HEADER_BYTES = 65_536
#: Limit for path and query. The longest valid list of filters is shorter.
ADDRESS_BYTES = 32_768
#: Maximum number of concurrently arriving requests of one peer. The oldest is dropped: an honest request
#: takes milliseconds.
RECEIVING_FROM_A_PEER = 64
_LOOK_SECONDS = 1.0
#: Open files of a process other than callers' connections.
_OTHER_FILES = 128
_MOST_CONNECTIONS = 4_000


_TOO_MANY_HEADERS = (431, "too_large", f"Request line and headers have at most {HEADER_BYTES} bytes.")
_turns = itertools.count(1)


def is_late(elapsed_seconds: float, received_bytes: int) -> bool:
    """Return whether a request that began `elapsed_seconds` ago should have arrived."""
    allowed = min(GRACE_SECONDS + received_bytes / BYTES_PER_SECOND, REQUEST_SECONDS)
    return elapsed_seconds > allowed


def most_connections() -> int:
    """Return the maximum number of concurrent connections of this process."""
    files, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(_OTHER_FILES, min(_MOST_CONNECTIONS, files - _OTHER_FILES))


def _turn(connection: BoundedProtocol) -> int:
    return connection._turn


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a deadline for each request and each answer."""

    #: Maximum number of concurrently arriving requests of one peer; None: no limit per peer.
    receiving_from_a_peer: ClassVar[int | None] = RECEIVING_FROM_A_PEER

    #: When the awaited or arriving request began; None if there is none.
    _begun: float | None = None
    #: Sequence number of its last request; the loop's clock does not advance within a callback.
    _turn = 0
    _received_bytes = 0
    _in_headers = True
    _header_bytes = 0
    #: The answer to a request whose parsing is aborted: status, code and reason.
    _refusal: tuple[int, str, str] | None = None
    #: Whether the request is answered and its rest discarded; closing at once could destroy the answer.
    _is_drained = False
    #: Time since which an answer is not fully sent, and its unsent bytes at that time.
    _unsent: tuple[float, int] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self._begin()
        self._make_room_in_all()
        self._next_look = self.loop.call_later(_LOOK_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """Stop the checks of this connection."""
        self._next_look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Take a part of one or more requests."""
        if self._begun is None:
            self._begin()
        self._received_bytes += len(data)
        if self._is_drained:
            return
        super().data_received(data)
        if self._begun is not None and self._in_headers and self._received_bytes > HEADER_BYTES:
            self._refuse(*_TOO_MANY_HEADERS, drain=True)

    def on_message_begin(self) -> None:
        """Begin a request at its first byte."""
        super().on_message_begin()
        self._in_headers = True
        self._header_bytes = 0

    def on_url(self, url: bytes) -> None:
        """Take a part of the address and check its length."""
        super().on_url(url)
        if len(self.url) > ADDRESS_BYTES:
            reason = f"An address has at most {ADDRESS_BYTES} bytes; use fewer or shorter filters."
            self._break_off(414, "address_too_long", reason)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Count a header. This also covers headers that arrive in one piece with the rest of the request."""
        super().on_header(name, value)
        self._header_bytes += len(name) + len(value)
        if len(self.url) + self._header_bytes > HEADER_BYTES:
            self._break_off(*_TOO_MANY_HEADERS)

    def _break_off(self, status: int, code: str, reason: str) -> NoReturn:
        """Abort the parsing of this request."""
        self._refusal = status, code, reason
        raise ValueError(reason)

    def send_400_response(self, _message: str) -> None:
        """Answer a request that is not HTTP or whose parsing was aborted."""
        self._refuse(
            *(self._refusal or (400, "not_http", "This is no HTTP request, or a damaged one.")), drain=True
        )

    def on_headers_complete(self) -> None:
        """Note the end of the headers."""
        self._in_headers = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """Note the end of the request."""
        self._begun = None
        super().on_message_complete()

    @property
    def is_receiving(self) -> bool:
        """Whether a request is awaited or arriving."""
        return self._begun is not None

    @property
    def is_idle(self) -> bool:
        """Whether no request is arriving or being answered."""
        return self._begun is None and (self.cycle is None or self.cycle.response_complete)

    def _begin(self) -> None:
        self._begun = self.loop.time()
        self._turn = next(_turns)
        self._received_bytes = 0
        if self.receiving_from_a_peer is None:
            return
        own = [one for one in self._all() if one.is_receiving and one.peer == self.peer]
        if len(own) > self.receiving_from_a_peer:
            min(own, key=_turn)._late()

    @property
    def peer(self) -> str:
        """The other end's address."""
        return self.client[0] if self.client else ""

    def _all(self) -> list[BoundedProtocol]:
        return [one for one in self.connections if isinstance(one, BoundedProtocol)]

    def _make_room_in_all(self) -> None:
        if len(self.connections) <= most_connections():
            return
        waiting = [one for one in self._all() if one.is_receiving or one.is_idle]
        min(waiting, key=_turn).transport.abort()

    def _look(self) -> None:
        self._next_look = self.loop.call_later(_LOOK_SECONDS, self._look)
        now = self.loop.time()
        if self._begun is not None and is_late(now - self._begun, self._received_bytes):
            self._late()
        left = self.transport.get_write_buffer_size()
        if not left or not (self.flow.write_paused or self.transport.is_closing()):
            self._unsent = None
        elif self._unsent is None:
            self._unsent = now, left
        elif now - self._unsent[0] >= GRACE_SECONDS:
            if self._unsent[1] - left < GRACE_SECONDS * BYTES_PER_SECOND:
                self.transport.abort()
            self._unsent = now, left

    def _late(self) -> None:
        if self._received_bytes == 0 or self._is_drained:
            self.transport.abort()
        else:
            self._refuse(408, "too_slow", "The request did not arrive in time.")

    def _refuse(self, status: int, code: str, reason: str, *, drain: bool = False) -> None:
        """Refuse an incomplete request, unless an answer has started on this connection, and close it.

        Args:
            drain: whether the caller is still sending; the connection is then closed at its end or deadline.
        """
        if self._is_drained:
            return
        begun, self._begun = self._begun, None
        if self.transport.is_closing():
            return
        answering: Any = self.cycle
        if answering is not None and answering.response_started and not answering.response_complete:
            self.transport.abort()
            return
        content = json.dumps(problem(status, code, reason)).encode()
        headers = f"content-type: {MEDIA_TYPE}\r\ncontent-length: {len(content)}\r\nconnection: close\r\n\r\n"
        self.transport.write(STATUS_LINE[status] + headers.encode() + content)
        if drain:
            self._is_drained, self._begun = True, begun
            self.transport.write_eof()
        else:
            self.transport.close()
