"""What a worker says last counts, also where it is read only after its process has ended."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path

import pytest

from workers.runtime.local_worker import LocalWorker, WorkerEndedError


class EndedProcess:
    pid = 1

    def poll(self) -> int | None:
        return 0

    def wait(self, timeout: float | None = None) -> int:
        return 0

    def kill(self) -> None:
        return


@pytest.fixture
def worker(tmp_path: Path) -> LocalWorker:
    return LocalWorker(tmp_path, EndedProcess(), auto_store=False)


def connected(worker: LocalWorker) -> socket.socket:
    """A worker's connection, of which the first message was read."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(worker.box / "agent.sock"))
    say(connection, {"phase": "profiling"})
    while not worker.of_kind("phase"):
        time.sleep(0.01)
    return connection


def say(connection: socket.socket, message: dict[str, object]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def test_last_words_that_arrive_late_are_heard(worker: LocalWorker) -> None:
    connection = connected(worker)

    def end() -> None:
        say(connection, {"event": {"id": "1", "kind": "profile_done"}})
        connection.close()

    threading.Timer(0.5, end).start()
    assert worker.wait_for_event("profile_done")["id"] == "1"


def test_who_ended_without_saying_it_is_not_waited_for(worker: LocalWorker) -> None:
    connected(worker).close()
    with pytest.raises(WorkerEndedError, match="never said it"):
        worker.wait_for_event("profile_done", seconds=3600)
