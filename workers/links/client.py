"""A worker's side of its server's links: it asks when its transfers end, and waits until then."""

from __future__ import annotations

import os
import socket
import threading
import time
from pathlib import Path

from workers.links.arbiter import Arbiter
from workers.links.rates import ServerLinks
from workers.links.wire import (
    ANSWER_BYTES,
    PIECE_BYTES,
    SOCKET_NAME,
    Request,
    answer_from_bytes,
)

#: How often a server that is away is looked for.
RETRY_SECONDS = 0.5
#: Transfers of one client that are on their way at once; fewer than the server takes from one worker.
MOST_CONNECTIONS = 24


def wait_until(at: float) -> None:
    """Sleep until the monotonic clock shows `at`."""
    seconds = at - time.monotonic()
    if seconds > 0:
        time.sleep(seconds)


class LinkClient:
    """Asks the links' server of the box. Threads may share it: each transfer on its way has a connection of
    its own, which the next one takes over.

    A worker outlives its agent, which serves the links. Without it a worker is held to its links' rates as if
    nobody else used them, and counts that: what is measured meanwhile says nothing about shared links.

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
        """Close the connections that nobody uses."""
        with self._lock:
            idle, self._idle = self._idle, []
        for connection in idle:
            connection.close()

    def carried(self) -> dict[str, dict[str, float]]:
        """Bytes that were paced without the server, by link and class of traffic."""
        with self._lock:
            return self._own.carried()

    def transfer(self, path: tuple[str, ...], traffic: str, size: int, started: float) -> float:
        """When a transfer of `size` bytes that began at `started` ends, by the monotonic clock. The answer
        may come a little before that time."""
        ended = started
        for first in range(0, max(size, 1), PIECE_BYTES):
            piece = Request(traffic, path, min(PIECE_BYTES, size - first), ended)
            ended = self._ask(piece)
        return ended

    def carry(self, path: tuple[str, ...], traffic: str, size: int, started: float) -> float:
        """Wait until the links have carried what was moved since `started`; returns when they were done with
        it. What follows may begin then: the wait is for its latency as well."""
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
                    # The others go to a server that is gone too.
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
    # Through the folder's descriptor: a socket's path may have 107 bytes at most.
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
