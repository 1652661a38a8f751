"""The sockets of all workers on this node, served by one thread."""

from __future__ import annotations

import json
import logging
import selectors
import socket
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from emulated_links.listening import ListeningThread
from emulated_links.sockets import listen
from workers.agent.processes.worker_messages import Message, MessageError, Refusal, parse_message

logger = logging.getLogger(__name__)

SOCKET_NAME = "agent.sock"
WAITING_CONNECTIONS = 4
LINE_LIMIT_BYTES = 1 << 20
OUTGOING_LIMIT_BYTES = 4 << 20
READ_BYTES = 1 << 16
#: Limit of a worker's messages that wait for the agent's main thread; beyond it, reading pauses.
WAITING_MESSAGES = 256

Receive = Callable[[str, Message | None], None]


@dataclass(eq=False)
class _Connection:
    #: Identifier of the worker.
    key: str
    socket: socket.socket
    #: Bytes of an incomplete message.
    received: bytearray = field(default_factory=bytearray)
    #: Bytes that are not sent yet.
    outgoing: bytearray = field(default_factory=bytearray)
    paused: bool = False


class WorkerSockets(ListeningThread):
    """Listens for each worker, passes its messages to `receive(key, message)`, and sends lines to it.

    `receive` gets None when a worker's connection is lost. It is called from this thread and must not block.
    """

    def __init__(self, receive: Receive) -> None:
        super().__init__("worker-sockets")
        self._receive = receive
        self._connections: dict[str, _Connection] = {}
        #: By worker: messages passed to `receive` and not yet handled. Guarded by the lock.
        self._waiting: dict[str, int] = {}

    def listen(self, key: str, box: Path, user_id: int | None) -> None:
        """Create `agent.sock` in the box, for the worker's user only. Raises OSError."""
        self.serve_listener(key, listen(box, SOCKET_NAME, user_id, WAITING_CONNECTIONS))

    def send(self, key: str, message: dict[str, Any]) -> None:
        """Send `message` if the worker is connected; after a reconnection the agent repeats everything
        anyway."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self.later(lambda: self._queue(key, line))

    def handled(self, key: str) -> None:
        """Record that a message of that worker was handled, and resume a paused one."""
        with self._lock:
            if key not in self._waiting:
                return
            self._waiting[key] -= 1
            waiting = self._waiting[key]
        if waiting == WAITING_MESSAGES // 2:
            self.later(lambda: self._resume(key))

    def connected(self, key: str, accepted: socket.socket) -> None:
        """Replace a worker's connection; the worker repeats unread messages."""
        self._drop(key)
        connection = _Connection(key, accepted)
        self._connections[key] = connection
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def serve(self, connection: _Connection, events: int) -> None:
        """Write pending lines, and read messages."""
        if self._connections.get(connection.key) is not connection:
            return
        try:
            if events & selectors.EVENT_WRITE:
                self._flush(connection)
            if events & selectors.EVENT_READ:
                received = connection.socket.recv(READ_BYTES)
                if not received:
                    self._lose(connection)
                    return
                self._take_lines(connection, received)
        except BlockingIOError:
            return
        except OSError:
            self._lose(connection)

    def _take_lines(self, connection: _Connection, received: bytes) -> None:
        connection.received += received
        *lines, rest = connection.received.split(b"\n")
        connection.received = bytearray(rest)
        if len(rest) > LINE_LIMIT_BYTES:
            logger.warning(
                "worker %s: a line of more than %d bytes; disconnected", connection.key, LINE_LIMIT_BYTES
            )
            self._lose(connection)
            return
        for line in lines:
            message: Message
            try:
                message = parse_message(bytes(line))
            except MessageError as error:
                message = Refusal(str(error))
            self._hand_over(connection.key, message)
        with self._lock:
            connection.paused = self._waiting.get(connection.key, 0) > WAITING_MESSAGES
        if connection.paused:
            self._wait_for(connection)

    def _hand_over(self, key: str, message: Message | None) -> None:
        with self._lock:
            self._waiting[key] = self._waiting.get(key, 0) + 1
        self._receive(key, message)

    def _resume(self, key: str) -> None:
        connection = self._connections.get(key)
        with self._lock:
            much_waits = self._waiting.get(key, 0) > WAITING_MESSAGES
        # More messages may have arrived meanwhile; then `handled` requests it again.
        if connection is not None and connection.paused and not much_waits:
            connection.paused = False
            self._wait_for(connection)

    def _wait_for(self, connection: _Connection) -> None:
        """Register for the events of interest: none while a connection is paused and has nothing to write."""
        reading = 0 if connection.paused else selectors.EVENT_READ
        events = reading | (selectors.EVENT_WRITE if connection.outgoing else 0)
        registered = connection.socket in self._selector.get_map()
        if registered and events:
            self._selector.modify(connection.socket, events, connection)
        elif registered:
            self._selector.unregister(connection.socket)
        elif events:
            self._selector.register(connection.socket, events, connection)

    def _queue(self, key: str, line: bytes) -> None:
        connection = self._connections.get(key)
        if connection is None:
            return
        connection.outgoing += line
        try:
            self._flush(connection)
        except OSError:
            self._lose(connection)

    def _flush(self, connection: _Connection) -> None:
        try:
            sent = connection.socket.send(connection.outgoing)
            del connection.outgoing[:sent]
        except BlockingIOError:
            pass
        if len(connection.outgoing) > OUTGOING_LIMIT_BYTES:  # a worker that reads nothing
            self._lose(connection)
            return
        self._wait_for(connection)

    def _lose(self, connection: _Connection) -> None:
        self._drop(connection.key)
        self._hand_over(connection.key, None)

    def _drop(self, key: str) -> None:
        connection = self._connections.pop(key, None)
        if connection is not None:
            if connection.socket in self._selector.get_map():
                self._selector.unregister(connection.socket)
            connection.socket.close()

    def disconnect(self, key: str) -> None:
        """Close the worker's connection and drop its unhandled messages."""
        self._drop(key)
        with self._lock:
            self._waiting.pop(key, None)
