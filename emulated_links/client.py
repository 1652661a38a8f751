"""A worker's client of its server's links: it requests the end of its transfers, and waits until then."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

from emulated_links.arbiter import Arbiter
from emulated_links.rates import ServerLinks
from emulated_links.wire import (
    ANSWER_BYTES,
    PIECE_BYTES,
    SOCKET_NAME,
    Request,
    answer_from_bytes,
)

#: Pause between attempts to reach an absent server.
RETRY_SECONDS = 0.5
#: Concurrent transfers of one client; below the server's limit for one worker.
MOST_CONNECTIONS = 24


def wait_until(at: float) -> None:
    """Sleep until `at` on the monotonic clock."""
    seconds = at - time.monotonic()
    if seconds > 0:
        time.sleep(seconds)


class LinkClient:
    """Sends requests to the link server of the box. Thread-safe: each transfer in progress has its own
    connection, which later ones reuse.

    A worker outlives its agent, which serves the links. Without the server each worker is limited to its
    links' rates alone, and counts such pieces: measurements then do not reflect sharing.

    Attributes:
        unshared: pieces that were paced without the server.
    """

    def __init__(self, links: ServerLinks, box: Path) -> None:
        self.links = links
        self.unshared = 0
        self._box = box
        self._own = Arbiter(links)
        self._lock = threading.Lock()
        self._may_ask = threading.BoundedSemaphore(MOST_CONNECTIONS)
        self._idle: list[socket.socket] = []
        self._retry_at = 0.0

    def close(self) -> None:
        """Close idle connections."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def carried(self) -> dict[str, dict[str, float]]:
        """Return the bytes paced without the server, by link and traffic class."""
        with self._lock:
            return self._own.carried()

    def transfer(self, path: tuple[str, ...], traffic: str, size: int, started: float) -> float:
        """Return when a transfer of `size` bytes that began at `started` ends, by the monotonic clock. May
        return shortly before that time."""
        ended = started
        for first in range(0, max(size, 1), PIECE_BYTES):
            piece = Request(traffic, path, min(PIECE_BYTES, size - first), ended)
            ended = self._ask(piece)
        return ended

    def carry(self, path: tuple[str, ...], traffic: str, size: int, started: float) -> float:
        """Wait until data moved since `started` has passed the links and their latency; return when the links
        finished it. The next transfer may begin at that time."""
        ended = self.transfer(path, traffic, size, started)
        wait_until(ended + self.links.latency_seconds(path))
        return ended

    def _ask(self, request: Request) -> float:
        with self._may_ask:
            connection = self._connection()
            if connection is not None:
                try:
                    connection.sendall(request.to_bytes())
                    ended = answer_from_bytes(_receive(connection))
                except OSError:
                    # The idle connections go to the same absent server.
                    connection.close()
                    self.close()
                else:
                    with self._lock:
                        self._idle.append(connection)
                    return ended
        return self._ask_own(request)

    def _connection(self) -> socket.socket | None:
        with self._lock:
            if self._idle:
                return self._idle.pop()
            if time.monotonic() < self._retry_at:
                return None
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        try:
            _connect(connection, self._box)
        except OSError:
            connection.close()
            self._retry_at = time.monotonic() + RETRY_SECONDS
            return None
        return connection

    def _ask_own(self, request: Request) -> float:
        with self._lock:
            self.unshared += 1
            pending = self._own.begin(request, time.monotonic())
            while pending.ended_at is None:
                end = self._own.next_end()
                assert end is not None
                self._own.advance(end)
            return pending.ended_at


def _connect(connection: socket.socket, box: Path) -> None:
    # Connect through the folder's descriptor, because a socket's path is limited to 107 bytes.
    folder = os.open(box, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{SOCKET_NAME}")
    finally:
        os.close(folder)


def _receive(connection: socket.socket) -> bytes:
    content = b""
    while len(content) < ANSWER_BYTES:
        received = connection.recv(ANSWER_BYTES - len(content))
        if not received:
            raise ConnectionError("the links' server is gone")
        content += received
    return content
