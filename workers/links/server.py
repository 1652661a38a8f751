"""Serves the links of an emulated server to its workers: one thread, a socket in each worker's box.

What a worker sends is untrusted: a record that makes no sense ends its connection, it may have a few
connections, and each has one piece of at most PIECE_BYTES on its way.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from recovery.store.sockets import listen
from workers.links.arbiter import Arbiter, Pending
from workers.links.rates import ServerLinks
from workers.links.wire import REQUEST_BYTES, SOCKET_NAME, Request, answer_to_bytes

logger = logging.getLogger(__name__)

#: A piece is answered so long before it ends: whoever asked waits for the end itself, more exactly than two
#: processes that wake each other. What comes in between waits for it.
LOOK_AHEAD_SECONDS = 0.001
CONNECTIONS_OF_A_WORKER = 32


@dataclass(eq=False)
class _Connection:
    key: str
    socket: socket.socket
    received: bytes = b""
    pending: Pending | None = None


class LinkServer(threading.Thread):
    """Paces the transfers of all workers that it listens to."""

    def __init__(self, links: ServerLinks) -> None:
        super().__init__(name="links", daemon=True)
        self._arbiter = Arbiter(links)
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._listeners: dict[str, socket.socket] = {}
        self._connections: dict[str, set[_Connection]] = {}
        self._requests: list[Callable[[], None]] = []
        self._stopped = False

    def listen(self, key: str, box: Path, user_id: int | None = None) -> None:
        """Make the socket in the box, for the worker's user alone. Raises OSError."""
        listener = listen(box, SOCKET_NAME, user_id, CONNECTIONS_OF_A_WORKER)
        self._later(lambda: self._add_listener(key, listener))

    def forget(self, key: str) -> None:
        """Listen for that worker no more."""
        self._later(lambda: self._remove(key))

    def carried(self) -> dict[str, dict[str, float]]:
        """Bytes carried since the start, by link and class of traffic."""
        with self._lock:
            return self._arbiter.carried()

    def stop(self) -> None:
        """End the thread and close everything."""
        self._stopped = True
        self._later(lambda: None)
        self.join()
        self._wake_read.close()
        self._wake_write.close()

    def run(self) -> None:
        """Serve until stopped."""
        while not self._stopped:
            for key, _events in self._selector.select(self._wait_seconds()):
                if key.fileobj is self._wake_read:
                    self._wake_read.recv(4096)
                elif isinstance(key.data, _Connection):
                    self._read(key.data)
                else:
                    self._accept(key.data)
            with self._lock:
                requests, self._requests = self._requests, []
            for request in requests:
                request()
            self._answer()
        for worker in list(self._listeners):
            self._remove(worker)
        self._selector.close()

    def _later(self, request: Callable[[], None]) -> None:
        with self._lock:
            self._requests.append(request)
        self._wake_write.send(b"w")

    def _wait_seconds(self) -> float | None:
        end = self._arbiter.next_end()
        return None if end is None else max(0.0, end - LOOK_AHEAD_SECONDS - time.monotonic())

    def _add_listener(self, key: str, listener: socket.socket) -> None:
        self._remove(key)
        self._listeners[key] = listener
        self._connections[key] = set()
        self._selector.register(listener, selectors.EVENT_READ, key)

    def _accept(self, key: str) -> None:
        listener = self._listeners.get(key)
        if listener is None:
            return
        try:
            accepted, _ = listener.accept()
        except OSError as error:
            logger.warning("worker %s: cannot accept its connection to the links: %s", key, error)
            return
        if len(self._connections[key]) >= CONNECTIONS_OF_A_WORKER:
            accepted.close()
            return
        accepted.setblocking(False)
        connection = _Connection(key, accepted)
        self._connections[key].add(connection)
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _read(self, connection: _Connection) -> None:
        if connection not in self._connections.get(connection.key, ()):
            return
        try:
            # One byte more than a request: a worker that does not wait for its answer is found out.
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

    def _answer(self) -> None:
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

    def _remove(self, key: str) -> None:
        for connection in list(self._connections.get(key, ())):
            self._drop(connection)
        self._connections.pop(key, None)
        listener = self._listeners.pop(key, None)
        if listener is not None:
            self._selector.unregister(listener)
            listener.close()
