"""Listener for the stores of other servers: one thread per caller, and a limited number of callers.

A caller that does not authenticate in time is disconnected. A silent or slow caller does not delay the
others.
"""

from __future__ import annotations

import logging
import socket
import threading
import time
from collections import Counter
from collections.abc import Callable

from emulated_links.sockets import listen_on
from recovery.store.peer_wire import Channel, PeerError
from recovery.store.wire import WireError

logger = logging.getLogger(__name__)

MOST_CALLERS = 32
#: From one address, before they have authenticated.
MOST_UNPROVEN = 8
_BACKLOG = 64
#: Pause after a failed accept, such as when no descriptors are left.
_PAUSE_SECONDS = 0.05


class Callers:
    """A listening port and its open connections."""

    def __init__(
        self,
        address: str,
        port: int,
        greet: Callable[[socket.socket], tuple[Channel, str, int]],
        serve: Callable[[Channel, str, int], None],
    ) -> None:
        """Listen at once. Raises OSError.

        Args:
            greet: authenticates a caller. serve: answers it until it disconnects. Both run in its thread.
        """
        self.where = (address, port)
        self._greet = greet
        self._serve = serve
        self._lock = threading.Lock()
        self._open: set[socket.socket] = set()
        self._unproven: Counter[str] = Counter()
        self._listener = listen_on(address, port, _BACKLOG)
        threading.Thread(target=self._accept, name="peers", daemon=True).start()

    def close(self) -> None:
        """Stop listening and disconnect all callers."""
        # A shutdown wakes the thread that waits in accept; close alone does not.
        _shut(self._listener)
        self._listener.close()
        self.hang_up()

    def hang_up(self) -> None:
        """End every connection."""
        with self._lock:
            for connection in self._open:
                _shut(connection)

    def _accept(self) -> None:
        while True:
            try:
                connection, where = self._listener.accept()
            except OSError:
                if self._listener.fileno() < 0:
                    return
                time.sleep(_PAUSE_SECONDS)
                continue
            host = str(where[0])
            with self._lock:
                fits = len(self._open) < MOST_CALLERS and self._unproven[host] < MOST_UNPROVEN
                if fits:
                    self._open.add(connection)
                    self._unproven[host] += 1
            if not fits:
                connection.close()
                continue
            try:
                threading.Thread(
                    target=self._speak, args=(connection, host), name="peer", daemon=True
                ).start()
            except RuntimeError as error:
                logger.warning("a store at %s cannot be heard: %s", host, error)
                self._proved(host)
                with self._lock:
                    self._open.discard(connection)
                connection.close()

    def _speak(self, connection: socket.socket, host: str) -> None:
        proven = False
        try:
            channel, job, generation = self._greet(connection)
            self._proved(host)
            proven = True
            self._serve(channel, job, generation)
        except PeerError as error:
            logger.warning("a store at %s is hung up on: %s", host, error)
        except (OSError, WireError) as error:
            logger.info("a store at %s is gone: %s", host, error)
        finally:
            if not proven:
                self._proved(host)
            with self._lock:
                self._open.discard(connection)
            connection.close()

    def _proved(self, host: str) -> None:
        with self._lock:
            self._unproven[host] -= 1
            if not self._unproven[host]:
                del self._unproven[host]


def _shut(connection: socket.socket) -> None:
    try:
        connection.shutdown(socket.SHUT_RDWR)
    except OSError:
        pass
