"""The worker's side of the agent's socket.

Training never waits for the agent: a thread sends messages from a bounded outbox. The agent may be gone for
any time. The worker keeps dialling and, once connected, repeats its hello, its phase, and unconfirmed events
and files. Metrics that pile up are thinned out.
"""

from __future__ import annotations

import json
import logging
import os
import socket
import threading
import time
import uuid
from collections import deque
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

_log = logging.getLogger(__name__)

RECONNECT_SECONDS = 0.2
METRICS_KEPT = 512
# Unix socket addresses hold 107 bytes.
_LONGEST_SOCKET_PATH = 100

Message = dict[str, Any]


class AgentConnection:
    """Sends reports to the agent and passes its messages to `handle`, in a thread of this connection."""

    def __init__(self, box: Path, handle: Callable[[Mapping[str, Any]], None]) -> None:
        self._address = _socket_address(box)
        self._handle = handle
        self._changed = threading.Condition()
        self._socket: socket.socket | None = None
        self._hello: Message = {
            "warm": True,
            "job": None,
            "generation": None,
            "rank": None,
            "pid": os.getpid(),
        }
        self._phase: Message | None = None
        self._outbox: deque[Message] = deque()
        self._events: dict[str, Message] = {}
        self._files: dict[str, Message] = {}

    def start(self) -> None:
        """Begin to dial and to send."""
        threading.Thread(target=self._dial_for_ever, name="agent-reader", daemon=True).start()
        threading.Thread(target=self._send_for_ever, name="agent-writer", daemon=True).start()

    def assigned(self, job: str, generation: int, rank: int) -> None:
        """Name the job, generation and rank in every later hello."""
        with self._changed:
            self._hello |= {"warm": False, "job": job, "generation": generation, "rank": rank}

    def phase(self, name: str, iteration: int | None = None) -> None:
        """Report the worker's phase and its iteration."""
        message: Message = {"phase": name}
        if iteration is not None:
            message["iteration"] = iteration
        with self._changed:
            self._phase = message
            self._post(message)

    def metrics(self, **fields: Any) -> None:
        """Report values of an iteration; dropped when too many wait."""
        with self._changed:
            waiting = [message for message in self._outbox if "metrics" in message]
            if len(waiting) >= METRICS_KEPT:
                dropped = {id(message) for message in waiting[::2]}
                self._outbox = deque(message for message in self._outbox if id(message) not in dropped)
            self._post({"metrics": fields})

    def serving(self, **counts: Any) -> None:
        """Report counts of requests. Counts only grow, so these replace unsent ones."""
        with self._changed:
            self._outbox = deque(message for message in self._outbox if "serving" not in message)
            if self._socket is not None:
                self._post({"serving": counts})

    def event(self, kind: str, **fields: Any) -> None:
        """Report something that must not be lost; repeated after every reconnect until acknowledged."""
        identifier = str(uuid.uuid4())
        message: Message = {"event": {"id": identifier, "kind": kind, **fields}}
        with self._changed:
            self._events[identifier] = message
            self._post(message)

    def is_heard(self, kind: str) -> bool:
        """Return whether the agent has confirmed all events of a kind."""
        with self._changed:
            return all(message["event"]["kind"] != kind for message in self._events.values())

    def file(self, path: str, **fields: Any) -> None:
        """Ask the agent to store a file or folder of the box durably."""
        message: Message = {"file": {"path": path, **fields}}
        with self._changed:
            self._files[path] = message
            self._post(message)

    def wait_until_stored(self, path: str) -> None:
        """Sleep until the agent has stored the file."""
        with self._changed:
            self._changed.wait_for(lambda: path not in self._files)

    def is_stored(self, path: str) -> bool:
        """Return whether the agent has stored the file."""
        with self._changed:
            return path not in self._files

    def drain(self, acknowledgement_seconds: float, longest_seconds: float) -> None:
        """Wait until everything is sent, then briefly for acknowledgements; called before the worker ends."""
        with self._changed:
            self._changed.wait_for(lambda: not self._outbox and self._socket is not None, longest_seconds)
            self._changed.wait_for(lambda: not self._events, acknowledgement_seconds)

    def _post(self, message: Message) -> None:
        # Phases need not pile up without a connection: a reconnect sends the last one.
        if self._socket is None and "phase" in message:
            return
        self._outbox.append(message)
        self._changed.notify_all()

    def _dial_for_ever(self) -> None:
        while True:
            try:
                connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
                connection.connect(self._address)
            except OSError:
                connection.close()
                time.sleep(RECONNECT_SECONDS)
                continue
            self._connected(connection)
            self._read(connection)
            self._disconnected(connection)
            time.sleep(RECONNECT_SECONDS)

    def _connected(self, connection: socket.socket) -> None:
        with self._changed:
            metrics = [message for message in self._outbox if "metrics" in message]
            self._outbox = deque([{"hello": dict(self._hello)}])
            if self._phase is not None:
                self._outbox.append(self._phase)
            self._outbox.extend([*self._events.values(), *self._files.values(), *metrics])
            self._socket = connection
            self._changed.notify_all()

    def _disconnected(self, connection: socket.socket) -> None:
        with self._changed:
            if self._socket is connection:
                self._socket = None
                self._changed.notify_all()
        connection.close()

    def _read(self, connection: socket.socket) -> None:
        try:
            with connection.makefile("rb") as lines:
                for line in lines:
                    self._receive(line)
        except OSError as error:
            _log.info("the agent's socket broke: %s", error)

    def _receive(self, line: bytes) -> None:
        try:
            message = json.loads(line)
            if "stored" in message:
                self._confirm(self._files, [message["stored"]])
            elif "acknowledged" in message:
                self._confirm(self._events, message["acknowledged"])
            else:
                self._handle(message)
        except (ValueError, KeyError, TypeError) as error:
            _log.error("the agent's message %r makes no sense: %s", line[:200], error)

    def _confirm(self, pending: dict[str, Message], names: list[str]) -> None:
        with self._changed:
            for name in names:
                pending.pop(name, None)
            self._changed.notify_all()

    def _send_for_ever(self) -> None:
        while True:
            with self._changed:
                self._changed.wait_for(lambda: self._socket is not None and bool(self._outbox))
                connection, message = self._socket, self._outbox[0]
            assert connection is not None
            try:
                connection.sendall(json.dumps(message).encode() + b"\n")
            except OSError:
                # The reader notices the broken connection too and dials again.
                self._disconnected(connection)
                continue
            with self._changed:
                if self._outbox and self._outbox[0] is message:
                    self._outbox.popleft()
                    self._changed.notify_all()


def _socket_address(box: Path) -> str:
    address = str(box / "agent.sock")
    if len(os.fsencode(address)) <= _LONGEST_SOCKET_PATH:
        return address
    # The folder stays open for the life of the process, so this short path stays valid.
    return f"/proc/self/fd/{os.open(box, os.O_RDONLY | os.O_DIRECTORY)}/agent.sock"
