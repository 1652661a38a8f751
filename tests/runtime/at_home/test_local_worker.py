"""Workers of a local agent: their last messages count, and no worker is taken for another."""

from __future__ import annotations

import json
import socket
import threading
import time
from pathlib import Path

import pytest

from workers.runtime.at_home import local_nursery
from workers.runtime.at_home.local_worker import LocalWorker, WorkerEndedError


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
    """Return a worker's connection after its first message."""
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.connect(str(worker.box / "agent.sock"))
    say(connection, {"phase": "profiling"})
    while not worker.of_kind("phase"):
        time.sleep(0.01)
    return connection


def say(connection: socket.socket, message: dict[str, object]) -> None:
    connection.sendall(json.dumps(message).encode() + b"\n")


def test_messages_that_arrive_after_the_exit_are_read(
    worker: LocalWorker, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("workers.runtime.at_home.local_worker.LAST_WORDS_SECONDS", 60.0)
    connection = connected(worker)

    def end() -> None:
        say(connection, {"event": {"id": "1", "kind": "profile_done"}})
        connection.close()

    threading.Timer(0.2, end).start()
    assert worker.wait_for_event("profile_done")["id"] == "1"


def test_a_worker_that_ended_silently_is_not_waited_for(worker: LocalWorker) -> None:
    connected(worker).close()
    with pytest.raises(WorkerEndedError, match="never said it"):
        worker.wait_for_event("profile_done", seconds=3600)


def test_workers_that_share_a_process_id_are_told_apart(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    nursery_process = tmp_path / "one_process_id_for_all.py"
    nursery_process.write_text(
        "import json, sys\n"
        "for line in sys.stdin:\n"
        "    request = json.loads(line)\n"
        "    if request['box'] is None:\n"
        "        break\n"
        "    number = request.get('number', 4194000)\n"
        "    print(json.dumps({'born': number, 'pid': 4194000}), flush=True)\n"
        "    if request['box'].endswith('first'):\n"
        "        print(json.dumps({'died': number, 'code': -9}), flush=True)\n"
    )
    monkeypatch.setattr(local_nursery, "__file__", str(nursery_process))
    nursery = local_nursery.Nursery(tmp_path)
    first = nursery.start_worker(tmp_path / "first", {})
    assert first.wait(60) == -9
    second = nursery.start_worker(tmp_path / "second", {})
    assert second.pid == first.pid
    assert second.poll() is None
    assert first.poll() == -9
    nursery.close()
