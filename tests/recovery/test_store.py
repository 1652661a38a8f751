"""The in-memory store as a process: what it keeps, what it refuses, and what it deletes."""

from __future__ import annotations

import logging
import os
import shutil
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from emulated_links.sockets import connect
from recovery.store import process, setbacks, wire
from recovery.store.client import StoreClient, StoredShard, StoreError
from tests.plugins.forking import forking

PROJECT = Path(__file__).parents[2]
# Its threads outlive a test, when their output is no longer captured.
logging.getLogger("recovery.store.client").setLevel(logging.WARNING)
LIMIT_BYTES = 8 << 20
WORKER_BYTES = 4 << 20
SECONDS = 60.0


def wait_until(condition: Callable[[], Any], what: str) -> Any:
    """Wait for a condition; return its value."""
    end = time.monotonic() + SECONDS
    while not (value := condition()):
        if time.monotonic() > end:
            pytest.fail(f"not within {SECONDS} s: {what}")
        time.sleep(0.01)
    return value


def run_store(folder: Path, limit_bytes: int, pause_seconds: float) -> None:
    """Become the store of a folder, which retries a peer `pause_seconds` after a failure."""
    setbacks.FIRST_PAUSE_SECONDS = pause_seconds
    process.main(str(folder), limit_bytes)


class Node:
    """A store's process and the agent's side."""

    pause_seconds = setbacks.FIRST_PAUSE_SECONDS

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "store"
        self.folder.mkdir()
        self.boxes = folder / "boxes"
        self.served: dict[str, dict[str, Any]] = {}
        self.peers: dict[str, Any] | None = None
        self.links: dict[str, Any] | None = None
        self.spare: list[str] = []
        self.lease = time.clock_gettime(time.CLOCK_BOOTTIME) + 1000.0
        self.start()

    def start(self) -> None:
        """Start the process, or start it again."""
        self.process = forking().Process(
            target=run_store, args=(self.folder, LIMIT_BYTES, self.pause_seconds)
        )
        self.process.start()
        self.connect()

    @property
    def process_id(self) -> int:
        """The store's process id."""
        assert self.process.pid is not None
        return self.process.pid

    def connect(self) -> None:
        """Connect as an agent that has just started."""
        self.connection: socket.socket = wait_until(self._dial, "the store listens")
        self.connection.settimeout(SECONDS)
        self.inbox = wire.Inbox(wire.CONTROL_LIMIT_BYTES)

    def _dial(self) -> socket.socket | None:
        try:
            return connect(self.folder, wire.CONTROL_NAME)
        except OSError:
            return None

    def tell(self, jobs: list[str] | None = None) -> dict[str, Any]:
        """Send the desired state; return what the store holds."""
        state: dict[str, Any] = {"lease": self.lease, "jobs": jobs, "serve": list(self.served.values())}
        if self.links is not None:
            state["links"] = self.links
        state["spare"] = self.spare
        if self.peers is not None:
            state["peers"] = self.peers
        wire.send(self.connection, {"state": state})
        while True:
            for message, _none in self.inbox.read(self.connection):
                return message

    def worker(
        self, job: str = "job", generation: int = 1, rank: int = 0, user_id: int | None = None
    ) -> StoreClient:
        """Return the worker's side of a connection."""
        key = f"{job}-{generation}-{rank}"
        box = self.boxes / key
        box.mkdir(parents=True)
        self.served[key] = {
            "key": key,
            "box": str(box),
            "user_id": user_id,
            "job": job,
            "generation": generation,
            "rank": rank,
            "world_size": 1,
            "limit_bytes": WORKER_BYTES,
        }
        self.tell()
        return StoreClient(box)

    def end(self) -> None:
        """Kill the process, if it still runs."""
        self.connection.close()
        self.process.kill()
        self.process.join()

    def held(self) -> list[tuple[str, int, int, int]]:
        """Return job, generation, rank and newest iteration of all held states."""
        return [
            (entry["job"], entry["generation"], entry["rank"], entry["iteration"])
            for entry in self.tell()["holdings"]
        ]


@pytest.fixture
def node(tmp_path: Path) -> Iterator[Node]:
    made = Node(tmp_path)
    yield made
    made.end()


def content(iteration: int, size: int = 100_000) -> bytes:
    return bytes([iteration % 251]) * size


def write(worker: StoreClient, iteration: int, committed: int | None = None, size: int = 100_000) -> None:
    """Write a version and wait until it is complete."""
    wait_until(worker.idle, "the store is there")
    if not worker.fits(size + 4, committed):
        worker.ask_for_room(size + 4, committed)
        wait_until(lambda: worker.fits(size + 4, committed), "there is room")
    parts = [b"head", content(iteration, size)]
    assert worker.write(iteration, parts, size=size + 4, description_bytes=4, committed=committed)
    wait_until(lambda: worker.holds(iteration), f"version {iteration} is whole")


def read(shard: StoredShard, size: int = 100_000) -> bytes:
    buffer = bytearray(size)
    shard.read_into(memoryview(buffer))
    shard.close()
    return bytes(buffer)


def test_a_later_generation_reads_the_earlier_ones_state(node: Node) -> None:
    write(node.worker(), 7)
    later = node.worker(generation=2)
    assert later.find(0, 1, SECONDS) == {7}
    shard = later.open(0, 1, 7, SECONDS)
    assert shard.description == b"head"
    assert read(shard) == content(7)
    assert node.held() == [("job", 1, 0, 7)]


def test_an_unfinished_version_never_counts(node: Node) -> None:
    worker = node.worker()
    write(worker, 7)
    write(worker, 8, committed=7)
    # Like a worker that dies while writing the next one: begun, half written, never ended.
    place = next(place for place, room in enumerate(worker._rooms) if room.holds == 7)
    worker._say({"begin": place, "iteration": 9, "committed": 8})
    os.pwrite(worker._rooms[place].descriptor, content(9, 50_000), 0)
    wait_until(lambda: node.held() == [("job", 1, 0, 8)], "it was begun")
    later = node.worker(generation=2)
    assert later.find(0, 1, SECONDS) == {8}
    assert read(later.open(0, 1, 8, SECONDS)) == content(8)


def test_the_committed_version_is_not_overwritten(node: Node) -> None:
    worker = node.worker()
    write(worker, 7)
    write(worker, 8, committed=7)
    place = next(place for place, room in enumerate(worker._rooms) if room.holds == 7)
    worker._say({"begin": place, "iteration": 9, "committed": 7})
    worker._say({"end": place, "iteration": 9, "bytes": 10, "description_bytes": 0})
    later = node.worker(generation=2)
    assert later.find(0, 1, SECONDS) == {7, 8}


def test_a_version_with_a_flipped_byte_is_dropped_for_the_older_one(node: Node) -> None:
    worker = node.worker()
    write(worker, 7)
    write(worker, 8, committed=7)
    room = next(room for room in worker._rooms if room.holds == 8)
    os.pwrite(room.descriptor, b"\xff", 60_000)
    later = node.worker(generation=2)
    assert later.find(0, 1, SECONDS) == {7}
    assert read(later.open(0, 1, 7, SECONDS)) == content(7)
    assert node.held() == [("job", 1, 0, 7)]


def test_a_version_being_read_is_not_overwritten(node: Node) -> None:
    worker = node.worker()
    write(worker, 7)
    assert node.worker(generation=2).find(0, 1, SECONDS) == {7}
    assert worker.write(8, [b"head"], size=4, description_bytes=4, committed=7)
    wait_until(lambda: worker.idle() and not worker.fits(4, None), "that was refused")
    assert node.held() == [("job", 1, 0, 7)]


def test_a_generations_committed_point_replaces_the_last_generations(node: Node) -> None:
    write(node.worker(), 7)
    later = node.worker(generation=2)
    write(later, 8)
    assert node.held() == [("job", 1, 0, 7), ("job", 2, 0, 8)]
    write(later, 9, committed=8)
    assert node.held() == [("job", 2, 0, 9)]


def test_a_worker_cannot_read_other_jobs_or_its_own_generation(node: Node) -> None:
    write(node.worker(), 7)
    assert node.worker("other", generation=2).find(0, 1, SECONDS) == set()
    with pytest.raises(StoreError, match="none before 1"):
        node.worker(rank=1).find(0, 1, SECONDS)


def test_a_workers_memory_is_limited_by_its_share_and_the_store(node: Node) -> None:
    greedy = node.worker("greedy")
    wait_until(greedy.idle, "the store is there")
    greedy.ask_for_room(WORKER_BYTES // 2 + 1, None)
    wait_until(greedy.idle, "it is answered")
    assert not greedy.fits(1, None)
    assert node.tell()["used_bytes"] == 0
    for number in range(2):
        write(node.worker(f"job-{number}"), 7, size=WORKER_BYTES // 2 - 4)
    late = node.worker("late")
    wait_until(late.idle, "the store is there")
    late.ask_for_room(100_000, None)
    wait_until(late.idle, "it is answered")
    assert not late.fits(1, None)
    assert node.tell()["used_bytes"] == LIMIT_BYTES
    assert len(node.held()) == 2, "those that were there before are not touched"


def test_spare_states_give_way_to_running_jobs(node: Node) -> None:
    half = WORKER_BYTES // 2 - 4
    write(node.worker("suspended"), 7, size=half)
    write(node.worker("trains"), 7, size=half)
    node.spare = ["suspended"]
    node.tell()
    assert node.tell()["used_bytes"] == LIMIT_BYTES, "nobody else has wanted the memory yet"
    later = node.worker("suspended", generation=2)
    assert later.find(0, 1, SECONDS) == {7}
    write(node.worker("newcomer"), 9, size=half)
    assert {job for job, *_ in node.held()} == {"trains", "newcomer"}
    assert later.find(0, 1, SECONDS) == set()


def test_no_reads_or_writes_after_the_servers_lease(node: Node) -> None:
    worker = node.worker()
    write(worker, 7)
    later = node.worker(generation=2)
    node.lease = time.clock_gettime(time.CLOCK_BOOTTIME)
    node.tell()
    with pytest.raises(StoreError, match="lease of this server is over"):
        later.find(0, 1, SECONDS)
    assert worker.write(8, [b"head"], size=4, description_bytes=4, committed=None)
    wait_until(worker.idle, "that is answered")
    assert not worker.holds(8)
    node.lease += 1000.0
    node.tell()
    assert later.find(0, 1, SECONDS) == {7}


def test_a_job_no_longer_named_is_forgotten(node: Node) -> None:
    write(node.worker("kept"), 7)
    write(node.worker("over"), 7)
    node.tell(jobs=None)
    assert len(node.held()) == 2
    node.tell(jobs=["kept"])
    assert node.held() == [("kept", 1, 0, 7)]


def test_a_request_without_a_store_goes_to_the_next_store(node: Node) -> None:
    worker = node.worker()
    write(worker, 7)
    node.connection.close()
    node.process.kill()
    node.process.join()
    wait_until(lambda: not worker.idle(), "the worker has seen that it is gone")
    worker.ask_for_room(100_000, 7)
    node.start()
    node.tell()
    write(worker, 8)
    assert node.held() == [("job", 1, 0, 8)]


def test_a_restarted_agent_finds_what_is_held(node: Node) -> None:
    worker = node.worker()
    write(worker, 7)
    node.connection.close()
    write(worker, 8, committed=7)
    node.connect()
    assert node.held() == [("job", 1, 0, 8)]


@pytest.mark.parametrize(
    "line",
    [
        b"no json\n",
        b"[1]\n",
        b'{"begin": 9}\n',
        b'{"reserve": -1}\n',
        b'{"reserve": true}\n',
        b'{"end": 0, "iteration": 1, "bytes": 1e99, "description_bytes": 0}\n',
        b'{"state": {"lease": 1e18, "jobs": [], "serve": []}}\n',
        b"x" * 100_000,
    ],
)
def test_nonsense_from_a_worker_ends_only_its_connection(node: Node, line: bytes) -> None:
    worker = node.worker()
    write(worker, 7)
    node.worker("other")
    hostile = connect(node.boxes / "other-1-0", wire.SOCKET_NAME)
    hostile.settimeout(SECONDS)
    hostile.sendall(line)
    with hostile:
        try:
            assert hostile.recv(100) == b""
        except ConnectionResetError:
            pass
    write(worker, 8, committed=7)


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a socket to somebody else")
def test_another_user_is_refused_though_it_reaches_the_socket(node: Node) -> None:
    node.worker("theirs", user_id=12_345)
    ours = connect(node.boxes / "theirs-1-0", wire.SOCKET_NAME)
    ours.settimeout(SECONDS)
    with ours:
        assert ours.recv(100) == b""


def test_a_store_ends_when_its_folder_is_gone(node: Node) -> None:
    node.connection.close()
    shutil.rmtree(node.folder)
    node.process.join(SECONDS)
    assert node.process.exitcode == 0


def test_a_second_store_of_a_folder_leaves_it_to_the_first(node: Node) -> None:
    write(node.worker(), 7)
    second = subprocess.run(
        process.command(sys.executable, PROJECT, node.folder, LIMIT_BYTES), timeout=SECONDS, check=False
    )
    assert second.returncode == 0
    assert node.held() == [("job", 1, 0, 7)]
