"""The sockets of all workers on this node, served by one thread."""

from __future__ import annotations

import json
import logging
import os
import selectors
import socket
import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from workers.agent.worker_messages import Message, MessageError, Refusal, parse_message

logger = logging.getLogger(__name__)

LINE_LIMIT_BYTES = 1 << 20
OUTGOING_LIMIT_BYTES = 4 << 20
READ_BYTES = 1 << 16
#: Messages of one worker that wait for the agent's main thread; beyond, nothing more is read from it for a
#: while.
WAITING_MESSAGES = 256

Receive = Callable[[str, Message | None], None]


@dataclass(eq=False)
class _Connection:
    key: str
    socket: socket.socket
    received: bytearray = field(default_factory=bytearray)
    outgoing: bytearray = field(default_factory=bytearray)
    paused: bool = False


class WorkerSockets(threading.Thread):
    """Listens for each worker, hands its messages to `receive(key, message)`, and sends lines to it.

    `receive` gets None when a worker's connection is lost; it is called from this thread and must not block.
    """

    def __init__(self, receive: Receive) -> None:
        super().__init__(name="worker-sockets", daemon=True)
        self._receive = receive
        self._selector = selectors.DefaultSelector()
        self._wake_read, self._wake_write = socket.socketpair()
        self._wake_read.setblocking(False)
        self._selector.register(self._wake_read, selectors.EVENT_READ)
        self._lock = threading.Lock()
        self._listeners: dict[str, socket.socket] = {}
        self._connections: dict[str, _Connection] = {}
        self._requests: list[Callable[[], None]] = []
        #: By worker: handed to `receive` and not yet handled. Guarded by the lock.
        self._waiting: dict[str, int] = {}
        self._stopped = False

    def listen(self, key: str, box: Path, user_id: int | None) -> None:
        """Make `agent.sock` in the box, for the worker's user alone. Raises OSError."""
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        listener.setblocking(False)
        # Through the folder's descriptor: a socket's path may have 107 bytes at most, a data folder's is
        # often longer.
        folder = os.open(box, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            path = f"/proc/self/fd/{folder}/agent.sock"
            (box / "agent.sock").unlink(missing_ok=True)
            listener.bind(path)
            os.chmod(path, 0o600)
            if user_id is not None:
                os.chown(path, user_id, user_id)
        finally:
            os.close(folder)
        listener.listen(4)
        self._later(lambda: self._add_listener(key, listener))

    def send(self, key: str, message: dict[str, Any]) -> None:
        """Send `message` if the worker is connected; after a reconnection the agent says everything again
        anyway."""
        line = json.dumps(message, separators=(",", ":")).encode() + b"\n"
        self._later(lambda: self._queue(key, line))

    def handled(self, key: str) -> None:
        """A message of that worker was dealt with: one that talks faster than the agent listens is read
        again."""
        with self._lock:
            if key not in self._waiting:
                return
            self._waiting[key] -= 1
            waiting = self._waiting[key]
        if waiting == WAITING_MESSAGES // 2:
            self._later(lambda: self._resume(key))

    def forget(self, key: str) -> None:
        """Listen for that worker no more."""
        self._later(lambda: self._remove(key))

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
            for key, events in self._selector.select():
                if key.fileobj is self._wake_read:
                    self._wake_read.recv(READ_BYTES)
                elif isinstance(key.data, _Connection):
                    self._serve(key.data, events)
                else:
                    self._accept(key.data, self._listeners.get(key.data))
            with self._lock:
                requests, self._requests = self._requests, []
            for request in requests:
                request()
        for worker in list(self._listeners):
            self._remove(worker)
        self._selector.close()

    def _later(self, request: Callable[[], None]) -> None:
        with self._lock:
            self._requests.append(request)
        self._wake_write.send(b"w")

    def _add_listener(self, key: str, listener: socket.socket) -> None:
        self._listeners[key] = listener
        self._selector.register(listener, selectors.EVENT_READ, key)

    def _accept(self, key: str, listener: socket.socket | None) -> None:
        if listener is None:
            return
        try:
            accepted, _ = listener.accept()
        except OSError as error:
            logger.warning("worker %s: cannot accept its connection: %s", key, error)
            return
        accepted.setblocking(False)
        self._drop(key)  # the worker has reconnected; what its old connection still holds it will say again
        connection = _Connection(key, accepted)
        self._connections[key] = connection
        self._selector.register(accepted, selectors.EVENT_READ, connection)

    def _serve(self, connection: _Connection, events: int) -> None:
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
        # Much may have come since this was asked for; then it is asked for again.
        if connection is not None and connection.paused and not much_waits:
            connection.paused = False
            self._wait_for(connection)

    def _wait_for(self, connection: _Connection) -> None:
        """Wait for what is of interest on a connection: for nothing while it is paused and has nothing to
        get."""
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

    def _remove(self, key: str) -> None:
        self._drop(key)
        with self._lock:
            self._waiting.pop(key, None)
        listener = self._listeners.pop(key, None)
        if listener is not None:
            self._selector.unregister(listener)
            listener.close()
