"""Serves the links of an emulated server to its workers: one thread, a socket in each worker's box.

Workers are untrusted: a malformed record ends the connection, connections are limited, and each has at most
one piece of PIECE_BYTES in progress.
"""

from __future__ import annotations

import logging
import selectors
import socket
import time
from dataclasses import dataclass
from pathlib import Path

from emulated_links.arbiter import Arbiter, Pending
from emulated_links.listening import ListeningThread
from emulated_links.rates import ServerLinks
from emulated_links.sockets import listen
from emulated_links.wire import REQUEST_BYTES, SOCKET_NAME, Request, answer_to_bytes

logger = logging.getLogger(__name__)

#: A piece is answered this long before it ends. The client waits for the end itself, which is more exact than
#: waking another process. Requests that arrive in between wait for it.
LOOK_AHEAD_SECONDS = 0.001
CONNECTIONS_OF_A_WORKER = 32


@dataclass(eq=False)
class _Connection:
    key: str
    socket: socket.socket
    received: bytes = b""
    pending: Pending | None = None


class LinkServer(ListeningThread):
    """Paces the transfers of all workers that it listens to."""

    def __init__(self, links: ServerLinks) -> None:
        super().__init__("links")
        self._arbiter = Arbiter(links)
        self._connections: dict[str, set[_Connection]] = {}

    def listen(self, key: str, box: Path, user_id: int | None = None) -> None:
        """Create the socket in the box, for the worker's user only. Raises OSError."""
        self.serve_listener(key, listen(box, SOCKET_NAME, user_id, CONNECTIONS_OF_A_WORKER))

    def carried(self) -> dict[str, dict[str, float]]:
        """Return the bytes carried since the start, by link and traffic class."""
        with self._lock:
            return self._arbiter.carried()

    def wait_seconds(self) -> float | None:
        """Return the time until the next transfer is due for an answer."""
        end = self._arbiter.next_end()
        return None if end is None else max(0.0, end - LOOK_AHEAD_SECONDS - time.monotonic())

    def connected(self, key: str, accepted: socket.socket) -> None:
        """Accept a connection, up to the worker's limit."""
        connections = self._connections.setdefault(key, set())
        if len(connections) >= CONNECTIONS_OF_A_WORKER:
            accepted.close()
            return
        connection = _Connection(key, accepted)
        connections.add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def serve(self, connection: _Connection, events: int) -> None:
        """Read a worker's request."""
        if connection not in self._connections.get(connection.key, ()):
            return
        try:
            # One byte more than a request, to detect a worker that does not wait for its answer.
            received = connection.socket.recv(REQUEST_BYTES + 1 - len(connection.received))
        except BlockingIOError:
            return
        except OSError:
            received = b""
        connection.received += received
        if not received or connection.pending is not None or len(connection.received) > REQUEST_BYTES:
            self._drop(connection)
        elif len(connection.received) == REQUEST_BYTES:
            self._begin(connection)

    def _begin(self, connection: _Connection) -> None:
        try:
            request = Request.from_bytes(connection.received)
        except ValueError as error:
            logger.warning("worker %s: %s; its connection to the links is closed", connection.key, error)
            self._drop(connection)
            return
        connection.received = b""
        with self._lock:
            connection.pending = self._arbiter.begin(request, time.monotonic())

    def settle(self) -> None:
        """Answer the transfers that have ended."""
        with self._lock:
            self._arbiter.advance(time.monotonic() + LOOK_AHEAD_SECONDS)
        for connections in self._connections.values():
            for connection in list(connections):
                ended = None if connection.pending is None else connection.pending.ended_at
                if ended is None:
                    continue
                connection.pending = None
                try:
                    connection.socket.send(answer_to_bytes(ended))
                except OSError:
                    self._drop(connection)

    def _drop(self, connection: _Connection) -> None:
        connections = self._connections.get(connection.key, set())
        if connection in connections:
            connections.remove(connection)
            self._selector.unregister(connection.socket)
            connection.socket.close()

    def disconnect(self, key: str) -> None:
        """Close all connections of a worker."""
        for connection in list(self._connections.get(key, ())):
            self._drop(connection)
        self._connections.pop(key, None)
