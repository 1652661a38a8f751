"""The HTTP protocol of every server: who sends a request or takes an answer too slowly is cut off.

What a slow caller costs is one connection, and how many of those there are is bounded here: for each peer,
and in all. The control plane's servers use it (`config/serving/`), and workers that serve.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import resource
from typing import Any, ClassVar, NoReturn

from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from punctual.protocol.problems import MEDIA_TYPE, problem

#: A request may take this long, and then as long as its bytes take at this rate; so may what is left of an
#: answer. A modem of 64 kbit/s is fast enough.
GRACE_SECONDS = 10.0
BYTES_PER_SECOND = 8_000
#: However many bytes it has.
REQUEST_SECONDS = 300.0
#: Request line and headers.
HEADER_BYTES = 65_536
#: Path and query. The longest list of filters that is understood takes less.
ADDRESS_BYTES = 32_768
#: Requests of one peer that are on their way at once. Whoever began first gives way: an honest request takes
#: milliseconds.
RECEIVING_FROM_A_PEER = 64
_LOOK_SECONDS = 1.0
#: Files of a process that are no connections of callers.
_OTHER_FILES = 128
_MOST_CONNECTIONS = 4_000


_TOO_MANY_HEADERS = (431, "too_large", f"Request line and headers have at most {HEADER_BYTES} bytes.")
_turns = itertools.count(1)


def is_late(elapsed_seconds: float, received_bytes: int) -> bool:
    """Whether a request that began so long ago should have arrived by now."""
    allowed = min(GRACE_SECONDS + received_bytes / BYTES_PER_SECOND, REQUEST_SECONDS)
    return elapsed_seconds > allowed


def most_connections() -> int:
    """Connections that a process keeps at once."""
    files, _hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    return max(_OTHER_FILES, min(_MOST_CONNECTIONS, files - _OTHER_FILES))


def _turn(connection: BoundedProtocol) -> int:
    return connection._turn


class BoundedProtocol(HttpToolsProtocol):
    """uvicorn's protocol with a deadline for each request and each answer."""

    #: Requests of one peer that are on their way at once; None where peers are not told apart.
    receiving_from_a_peer: ClassVar[int | None] = RECEIVING_FROM_A_PEER

    #: When the request began that is awaited or on its way; None while there is none.
    _begun: float | None = None
    #: The place of its last request among all: the loop's clock stands still while it works.
    _turn = 0
    _received_bytes = 0
    _in_headers = True
    _header_bytes = 0
    #: The answer to a request that its parser is told to break off: status, code and reason.
    _refusal: tuple[int, str, str] | None = None
    #: Answered; what still comes is thrown away, since closing at once would take the answer from the caller.
    _is_drained = False
    #: Since when so many bytes of an answer have not been taken.
    _unsent: tuple[float, int] | None = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """A caller has come; the first request is awaited from now on."""
        super().connection_made(transport)
        self._begin()
        self._make_room_in_all()
        self._next_look = self.loop.call_later(_LOOK_SECONDS, self._look)

    def connection_lost(self, exc: Exception | None) -> None:
        """The caller has gone."""
        self._next_look.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """A part of a request, or of several."""
        if self._begun is None:
            self._begin()
        self._received_bytes += len(data)
        if self._is_drained:
            return
        super().data_received(data)
        if self._begun is not None and self._in_headers and self._received_bytes > HEADER_BYTES:
            self._refuse(*_TOO_MANY_HEADERS, drain=True)

    def on_message_begin(self) -> None:
        """The first byte of a request."""
        super().on_message_begin()
        self._in_headers = True
        self._header_bytes = 0

    def on_url(self, url: bytes) -> None:
        """A part of the address."""
        super().on_url(url)
        if len(self.url) > ADDRESS_BYTES:
            reason = f"An address has at most {ADDRESS_BYTES} bytes; use fewer or shorter filters."
            self._break_off(414, "address_too_long", reason)

    def on_header(self, name: bytes, value: bytes) -> None:
        """A header, whole. What came in one piece with the rest of its request is counted here."""
        super().on_header(name, value)
        self._header_bytes += len(name) + len(value)
        if len(self.url) + self._header_bytes > HEADER_BYTES:
            self._break_off(*_TOO_MANY_HEADERS)

    def _break_off(self, status: int, code: str, reason: str) -> NoReturn:
        """End the parsing of this request."""
        self._refusal = status, code, reason
        raise ValueError(reason)

    def send_400_response(self, _message: str) -> None:
        """Answer what is no HTTP, or was broken off."""
        self._refuse(
            *(self._refusal or (400, "not_http", "This is no HTTP request, or a damaged one.")), drain=True
        )

    def on_headers_complete(self) -> None:
        """Its body follows."""
        self._in_headers = False
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """It is here, whole."""
        self._begun = None
        super().on_message_complete()

    @property
    def is_receiving(self) -> bool:
        """Whether a request is awaited or on its way."""
        return self._begun is not None

    @property
    def is_idle(self) -> bool:
        """Whether nothing is asked here at present."""
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
        """Answer what has not arrived, unless an answer is under way on this connection, and close it.

        Args:
            drain: the caller is still sending. Its end closes the connection, or its being late.
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
