"""One thread that listens on a socket in each worker's box, and serves the connections (standard library
only).

Other threads submit work by `later`; only this thread uses the sockets.
"""

from __future__ import annotations

import logging
import selectors
import socket
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

logger = logging.getLogger(__name__)

WAKE_BYTES = 1 << 16


class ListeningThread(threading.Thread, ABC):
    """Accepts workers' connections by key and waits for their data. Subclasses define the handling."""

    def __init__(self, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._listeners: dict[str, socket.socket] = {}
        self._requests: list[Callable[[], None]] = []
        self._stopped = False

    def later(self, request: Callable[[], None]) -> None:
        """Run `request` in this thread, soon."""
        with self._lock:
            self._requests.append(request)
        self._wake_write.send(b"w")

    def serve_listener(self, key: str, listener: socket.socket) -> None:
        """Accept connections to a worker's socket."""
        self.later(lambda: self._add_listener(key, listener))

    def forget(self, key: str) -> None:
        """Stop listening for that worker."""
        self.later(lambda: self._remove(key))

    def stop(self) -> None:
        """End the thread and close everything."""
        self._stopped = True
        self.later(lambda: None)
        self.join()
        self._wake_read.close()
        self._wake_write.close()

    def run(self) -> None:
        """Serve until stopped."""
        while not self._stopped:
            for key, events in self._selector.select(self.wait_seconds()):
                if key.fileobj is self._wake_read:
                    self._wake_read.recv(WAKE_BYTES)
                elif isinstance(key.data, str):
                    self._accept(key.data)
                else:
                    self.serve(key.data, events)
            with self._lock:
                requests, self._requests = self._requests, []
            for request in requests:
                request()
            self.settle()
        for worker in list(self._listeners):
            self._remove(worker)
        self._selector.close()

    def wait_seconds(self) -> float | None:
        """Return the longest wait for sockets; None for no limit."""
        return None

    def settle(self) -> None:
        """Run after each round of socket events."""

    @abstractmethod
    def connected(self, key: str, accepted: socket.socket) -> None:
        """Handle a new connection of a worker."""

    @abstractmethod
    def serve(self, connection: Any, events: int) -> None:
        """Handle a connection that is readable or writable."""

    @abstractmethod
    def disconnect(self, key: str) -> None:
        """Close all connections of a worker."""

    def _add_listener(self, key: str, listener: socket.socket) -> None:
        self._remove(key)
        self._listeners[key] = listener
        self._selector.register(listener, selectors.EVENT_READ, key)

    def _accept(self, key: str) -> None:
        listener = self._listeners.get(key)
        if listener is None:
            return
        try:
            accepted, _ = listener.accept()
        except OSError as error:
            logger.warning("%s: worker %s: cannot accept its connection: %s", self.name, key, error)
            return
        accepted.setblocking(False)
        self.connected(key, accepted)

    def _remove(self, key: str) -> None:
        self.disconnect(key)
        listener = self._listeners.pop(key, None)
        if listener is not None:
            self._selector.unregister(listener)
            listener.close()
