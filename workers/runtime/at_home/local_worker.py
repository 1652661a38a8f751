"""One worker process of the local agent (`local_agent.py`): its box, its socket, its messages."""

from __future__ import annotations

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Protocol

Message = dict[str, Any]


#: Maximum time to read a worker's last messages after its process ended, as its children may keep the
#: connection open.
LAST_WORDS_SECONDS = 5.0


class WorkerProcess(Protocol):
    """The part of `subprocess.Popen` that a worker's process must have."""

    @property
    def pid(self) -> int: ...

    def poll(self) -> int | None: ...

    def wait(self, timeout: float | None = None) -> int: ...

    def kill(self) -> None: ...


Launch = Callable[[Path, Mapping[str, str]], WorkerProcess]


class WorkerEndedError(RuntimeError):
    """A worker ended, or was silent for too long, before it sent the expected message."""


class LocalWorker:
    """One worker process, its box and its socket."""

    def __init__(self, box: Path, process: WorkerProcess, auto_store: bool) -> None:
        self.box = box
        self.process = process
        self.messages: list[Message] = []
        self.auto_store = auto_store
        self.auto_acknowledge = True
        self._changed = threading.Condition()
        self._connection: socket.socket | None = None
        self._reading = False
        self.listen()

    def listen(self) -> None:
        """Open the agent's socket and accept the worker's connections."""
        path = self.box / "agent.sock"
        path.unlink(missing_ok=True)
        self._listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self._listener.bind(str(path))
        self._listener.listen(1)
        threading.Thread(target=self._accept, args=(self._listener,), daemon=True).start()

    def hang_up(self) -> None:
        """Behave like an agent that is gone: close the socket and the connection."""
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        with self._changed:
            connection, self._connection = self._connection, None
        if connection is not None:
            connection.shutdown(socket.SHUT_RDWR)
            connection.close()

    def _accept(self, listener: socket.socket) -> None:
        while True:
            try:
                connection, _ = listener.accept()
            except OSError:
                return
            with self._changed:
                self._connection = connection
                self._reading = True
            self._read(connection)
            with self._changed:
                self._reading = False
                self._changed.notify_all()

    def _read(self, connection: socket.socket) -> None:
        try:
            with connection.makefile("rb") as lines:
                for line in lines:
                    self._take(json.loads(line))
        except (OSError, ValueError):
            return

    def _take(self, message: Message) -> None:
        with self._changed:
            self.messages.append(message)
            self._changed.notify_all()
        if "event" in message and self.auto_acknowledge:
            self.send({"acknowledged": [message["event"]["id"]]})
        if "file" in message and self.auto_store:
            self.send({"stored": message["file"]["path"]})

    def send(self, message: Mapping[str, Any]) -> None:
        """Send a message; it is lost if the worker has just ended."""
        try:
            if self._connection is not None:
                self._connection.sendall(json.dumps(message).encode() + b"\n")
        except OSError:
            return

    def goal(self, goal: str, start: Mapping[str, Any] | None = None) -> None:
        """Send a goal to the worker."""
        self.send({"goal": goal, "start": start})

    def wait_for(
        self, wanted: Callable[[Message], bool], seconds: float = 60.0, *, after: int = 0
    ) -> Message:
        """Return the first message from index `after` on for which `wanted` holds.

        Raises:
            WorkerEndedError: the worker ended without such a message, or `seconds` passed.
        """
        deadline = time.monotonic() + seconds
        while True:
            ended = self.process.poll() is not None
            with self._changed:
                if ended:
                    # Its last messages may still be unread.
                    self._changed.wait_for(lambda: not self._reading, LAST_WORDS_SECONDS)
                found = next((message for message in self.messages[after:] if wanted(message)), None)
                if found is not None:
                    return found
                if ended or time.monotonic() > deadline:
                    break
                self._changed.wait(0.1)
        failures = [event for event in self.of_kind("event") if event["kind"] == "failed"]
        if failures:
            raise WorkerEndedError(f"{failures[0]['message']}\n{failures[0]['traceback']}".rstrip())
        raise WorkerEndedError(
            f"worker (exit code {self.process.poll()}) never said it; last: "
            f"{self.messages[-3:]}\n{self.log()}"
        )

    def wait_for_phase(self, phase: str, seconds: float = 60.0) -> Message:
        """Return the message that reports `phase`."""
        return self.wait_for(lambda message: message.get("phase") == phase, seconds)

    def wait_for_event(self, kind: str, seconds: float = 60.0) -> Message:
        """Return the first event of this kind."""
        found = self.wait_for(lambda message: message.get("event", {}).get("kind") == kind, seconds)
        return dict(found["event"])

    def wait_for_file(self, kind: str, seconds: float = 60.0) -> Message:
        """Return the first announcement of a `checkpoint` or of the `final` folder."""
        found = self.wait_for(lambda message: message.get("file", {}).get("kind") == kind, seconds)
        return dict(found["file"])

    def of_kind(self, name: str) -> list[Any]:
        """Return the contents of all messages named `phase`, `metrics`, `event`, `file` or `hello`."""
        with self._changed:
            return [message[name] for message in self.messages if name in message]

    def log(self) -> str:
        """Return the end of the worker's stdout and stderr."""
        path = self.box.parent / f"{self.box.name}.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else ""

    def end(self, seconds: float = 60.0) -> int:
        """Wait until the worker exits; return the exit code."""
        return self.process.wait(seconds)

    def kill(self) -> None:
        """Kill the worker."""
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        self.hang_up_quietly()

    def hang_up_quietly(self) -> None:
        """Close the sockets of a worker that is gone."""
        try:
            self.hang_up()
        except OSError:
            return


def start_process(box: Path, environment: Mapping[str, str]) -> subprocess.Popen[bytes]:
    """Start a worker as an agent does, without the sandbox."""
    with (box.parent / f"{box.name}.log").open("wb") as log:
        return subprocess.Popen(
            [sys.executable, "-P", "-m", "workers.runtime", "--box", str(box)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=subprocess.STDOUT,
            env=dict(environment),
            cwd=box,
        )
