"""Copies that break midway: every waiting caller gets an answer, and the next copy is made."""

from __future__ import annotations

import errno
import os
import socket
import struct
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from emulated_links.sockets import listen
from recovery.store import calls, memory, peer_wire, wire, worker_requests
from recovery.store.allowances import Sending
from recovery.store.client import StoreClient, StoreError
from recovery.store.groups import Group, Groups
from recovery.store.holdings import Holdings, Owner, Version
from recovery.store.links import StoreLinks, Way
from recovery.store.memory import Region, checksums
from recovery.store.peer_wire import Channel, Peer
from recovery.store.peers import Peers
from recovery.store.server import StoreServer
from recovery.store.shard_stream import receive_shard, send_shard
from recovery.store.wire import Inbox
from recovery.store.worker_requests import Connection, Served, WorkerRequests
from tests.recovery.test_peers import SECRET, Server
from tests.recovery.test_store import SECONDS, content, wait_until, write
from workers.runtime.at_home.local_ports import free_port

OWNER = Owner("job", 1, 0)


@pytest.fixture
def first(tmp_path: Path) -> Iterator[Server]:
    made = Server(tmp_path / "first", "first")
    yield made
    made.end()


def take_one_chunk(connection: socket.socket) -> None:
    """Act as another server's store that begins to accept a copy."""
    channel, _job, _generation = peer_wire.answer(connection, "second", lambda *_: SECRET, lambda: None)
    assert "put" in channel.receive()
    channel.send({"ready": True})
    head = bytearray(8)
    channel.receive_bytes(memoryview(head))
    (length, _checksum) = struct.unpack(">II", head)
    channel.receive_bytes(memoryview(bytearray(length)))
    channel.mark()


@pytest.mark.parametrize("end", ["it dies", "it stands still"])
def test_points_continue_when_a_peer_ends_during_a_copy(first: Server, end: str) -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        listener.settimeout(SECONDS)
        peer = {"server": "second", "address": "127.0.0.1", "port": listener.getsockname()[1]}
        first.join(send=[{"rank": 0, "peers": [peer]}])
        worker = first.worker()
        wait_until(worker.idle, "the store is there")
        worker.ask_for_room(1 << 20, None)
        wait_until(lambda: worker.fits(1 << 20, None), "there is room")
        assert worker.write(7, [content(7, 1 << 20)], size=1 << 20, description_bytes=0, committed=None)
        connection, _ = listener.accept()
        with connection:
            take_one_chunk(connection)
            if end == "it dies":
                listener.close()
                connection.close()
            wait_until(lambda: worker.holds(7), "it is kept without a copy")
    assert first.copies() == [(1, 2)]
    report = first.tell()
    assert report["protection"] == "none"
    assert report["problem"].startswith("server second keeps no copy: ")
    write(worker, 8, size=1000)


class Store:
    """The part of a store that talks to other stores, and its own thread."""

    def __init__(self, folder: Path, size: int = 100, owner: Owner = OWNER) -> None:
        self.owner = owner
        self.works: list[Callable[[], None]] = []
        self.queued = threading.Semaphore(0)
        holdings = Holdings(1 << 20)
        holdings.reserve(owner, 1, size, None, 1 << 20)
        holdings.begin(owner, 0, None)
        region = holdings.end(owner, 0, 7, size, 0)
        self.version = Version(7, size, 0, checksums(region.descriptor, size), 0.0)
        holdings.checked(owner, 0, self.version)
        self.peers = Peers(holdings, self.later, lambda: None, StoreLinks(folder))
        self.peer = Peer("b", "127.0.0.1", 1)
        self.send_to(self.peer)

    def send_to(self, *peers: Peer) -> None:
        self.peers.obey(None, Groups("a", {("job", 1): Group(SECRET, send={self.owner.rank: peers})}))

    def later(self, work: Callable[[], None]) -> None:
        self.works.append(work)
        self.queued.release()

    def work(self) -> None:
        """Run the next task of the store's own thread."""
        assert self.queued.acquire(timeout=SECONDS), "somebody never gets an answer"
        self.works.pop(0)()

    def work_for_ever(self) -> None:
        while True:
            self.queued.acquire()
            self.works.pop(0)()

    def copy(self) -> list[object]:
        """Have a copy made; return the answer to the caller."""
        answers: list[object] = []
        self.peers.copy(self.owner, 0, self.version, Sending(), answers.append)
        self.work()
        return answers


ERRORS = [BufferError("in use"), MemoryError(), RuntimeError("broken"), struct.error("no chunk"), OSError()]


@pytest.mark.parametrize("error", ERRORS, ids=lambda error: type(error).__name__)
def test_every_error_of_a_copy_is_answered(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def breaks(*_: object) -> None:
        raise error

    monkeypatch.setattr(calls, "send", breaks)
    store = Store(tmp_path)
    assert store.copy() == [[]]
    assert store.peers.copies_of(OWNER) == {"copies": 1, "wanted_copies": 2}
    assert store.peers.report()["problem"].startswith("server b keeps no copy: ")


def test_a_copy_counts_while_its_assigned_server_holds_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "send", lambda *_: calls.Sent(100, 1.0, 0.0))
    store = Store(tmp_path)
    store.copy()
    assert store.peers.report()["protection"] == "full"
    # Its server was given up, and another server is assigned a copy of the next version.
    store.send_to(Peer("c", "127.0.0.1", 2))
    assert store.peers.copies_of(OWNER) == {"copies": 1, "wanted_copies": 2}
    assert store.peers.report()["protection"] == "none"


def test_every_error_of_a_background_task_is_answered(tmp_path: Path) -> None:
    def breaks() -> None:
        raise MemoryError

    server = StoreServer(tmp_path, 1000)
    answers: list[object] = []

    def record(result: object) -> None:
        answers.append(result)
        server._stopped = True

    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    server.in_background(breaks, record)
    wait_until(lambda: answers == [None], "it is answered")
    thread.join()
    for end in (server._wake_read, server._wake_write):
        end.close()


class Answers:
    """A store's loop that runs tasks at once."""

    def __init__(self) -> None:
        self.told: list[Mapping[str, Any]] = []

    def send(self, connection: Connection, message: Mapping[str, Any], descriptors: Any = ()) -> None:
        self.told.append(message)

    def later(self, work: Callable[[], None]) -> None:
        work()

    def in_background(self, work: Callable[[], Any], then: Callable[[Any], None]) -> None:
        then(work())

    def require_lease(self) -> None:
        pass


@pytest.fixture
def asked(tmp_path: Path) -> Iterator[tuple[Answers, Callable[..., None]]]:
    """Return the worker's answers, and a function to send its requests."""
    answers, holdings = Answers(), Holdings(1 << 20)
    peers = Peers(holdings, lambda work: work(), lambda: None, StoreLinks(tmp_path))
    requests = WorkerRequests(answers, holdings, peers)
    served_end, other_end = socket.socketpair()

    def ask(*, as_generation: int = 1, **message: Any) -> None:
        owner = Owner("job", as_generation, 0)
        served = Served("key", "box", None, owner, 1, 1 << 20)
        requests.answer(Connection(served_end, Inbox(), served), served, message)

    with served_end, other_end:
        yield answers, ask


def test_unreadable_version_leaves_its_slot_to_the_next(
    asked: tuple[Answers, Callable[..., None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, ask = asked

    def none_left(_: Region) -> int:
        raise OSError(errno.EMFILE, "no descriptors")

    ask(reserve=100)
    with monkeypatch.context() as patch:
        patch.setattr(Region, "open_to_read", none_left)
        ask(begin=0)
        ask(end=0, iteration=7, bytes=4, description_bytes=4)
    assert answers.told[-1] == {"refused": "what was written cannot be read: no descriptors", "what": "end"}
    ask(begin=0)
    ask(end=0, iteration=8, bytes=4, description_bytes=4)
    assert answers.told[-1]["complete"] == 8


def test_memory_that_cannot_be_allocated_is_refused_and_not_counted(
    asked: tuple[Answers, Callable[..., None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, ask = asked

    def none_left(*_: int) -> None:
        raise OSError(errno.ENOSPC, "no space")

    with monkeypatch.context() as patch:
        patch.setattr(os, "posix_fallocate", none_left)
        ask(reserve=1 << 18)
    refused = {"refused": "the server has no 524288 bytes of memory: no space", "what": "reserve"}
    assert answers.told == [refused]
    ask(reserve=1 << 19)
    assert answers.told[-1] == {"slots": [1 << 19, 1 << 19], "holds": [None, None]}


def test_a_waiting_worker_receives_progress_messages(
    asked: tuple[Answers, Callable[..., None]], monkeypatch: pytest.MonkeyPatch
) -> None:
    answers, ask = asked
    monkeypatch.setattr(worker_requests, "PROGRESS_SECONDS", 0.0)
    monkeypatch.setattr(memory, "CHUNK_BYTES", 1 << 17)
    ask(reserve=1 << 18)
    ask(begin=0)
    ask(end=0, iteration=7, bytes=1 << 18, description_bytes=0)
    answers.told.clear()
    ask(as_generation=2, find=0, generation=1)
    assert answers.told == [{"goes_on": True}, {"goes_on": True}, {"found": [7], "rank": 0}]


def test_a_worker_waits_while_its_store_makes_progress(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    client = StoreClient(tmp_path)
    client._socket, other = socket.socketpair()
    waited: list[float] = []

    def wait_for(condition: Callable[[], bool], seconds: float) -> bool:
        waited.append(seconds)
        if len(waited) in range(2, 50):
            client._take({"goes_on": True}, [])
        elif len(waited) == 50:
            client._take({"found": [7], "rank": 0}, [])
        return condition()

    with client._socket, other:
        monkeypatch.setattr(client._changed, "wait_for", wait_for)
        assert client.find(0, 0, 60.0) == {7}
        assert waited == [60.0] * 50
        waited.append(0.0)
        with pytest.raises(StoreError, match="does not answer"):
            client.find(0, 0, 60.0)


def test_training_does_not_wait_for_a_frozen_store(tmp_path: Path) -> None:
    with listen(tmp_path, wire.SOCKET_NAME, None, 1) as listener:
        listener.setblocking(True)
        client = StoreClient(tmp_path)
        frozen, _ = listener.accept()
        wait_until(client.idle, "it is connected")
        done = threading.Event()

        def train() -> None:
            for _ in range(10_000):
                client.allow(1, 1.0)
            done.set()

        threading.Thread(target=train, daemon=True).start()
        assert done.wait(SECONDS), "training waits"
        again, _ = listener.accept()
        with frozen, again:
            wait_until(client.idle, "it has dialled anew")
    (tmp_path / wire.SOCKET_NAME).unlink()


def test_a_sender_waits_while_its_peer_takes_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(memory, "_TAKEN_AT_ONCE_BYTES", 30)
    here, there = Store(tmp_path, owner=Owner("job", 1, 1)), Store(tmp_path)
    port = free_port()
    there.peers.obey(("127.0.0.1", port), Groups("b", {("job", 1): Group(SECRET, keep=frozenset({1}))}))
    threading.Thread(target=there.work_for_ever, daemon=True).start()
    heard: list[dict[str, Any]] = []
    receive = Channel.receive

    def hear(channel: Channel) -> dict[str, Any]:
        heard.append(receive(channel))
        return heard[-1]

    monkeypatch.setattr(Channel, "receive", hear)
    here.send_to(Peer("b", "127.0.0.1", port))
    assert here.copy() != [[]]
    taken = [message["taking"] for message in heard if "taking" in message]
    assert taken == [30, 60, 90]
    there.peers.close()


class Clock:
    """A clock that advances only when the test sets it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def pair(clock: Clock) -> tuple[Channel, Channel]:
    """Yield both ends of an authenticated connection."""
    owner_end, holder_end = socket.socketpair()
    return (
        Channel(owner_end, b"key", b"owner", b"holder", lambda: None, clock),
        Channel(holder_end, b"key", b"holder", b"owner", lambda: None, clock),
    )


class SlowWay(Way):
    """Delivers each piece in nearly the longest time that a step may take."""

    def __init__(self, clock: Clock, seconds: float) -> None:
        super().__init__()
        self.clock, self.seconds, self.pieces = clock, seconds, 0

    def carry(self, size: int, began: float) -> None:
        self.clock.now += self.seconds
        self.pieces += 1


def test_a_copy_may_last_while_it_makes_progress(tmp_path: Path) -> None:
    clock = Clock()
    here, there = pair(clock)
    size = 1 << 20
    region, target = Region(size), Region(size)
    os.pwrite(region.descriptor, content(7, size), 0)
    expected = checksums(region.descriptor, size)
    way = SlowWay(clock, 0.9 * peer_wire.STEP_SECONDS)
    errors: list[tuple[tuple[int, ...], str]] = []

    def receive() -> None:
        errors.append(receive_shard(there, size, target.descriptor, Way(), Way()))

    thread = threading.Thread(target=receive, daemon=True)
    thread.start()
    with here, there:
        send_shard(here, memoryview(content(7, size)), expected.sha256, way)
        thread.join(SECONDS)
    assert way.pieces >= 16
    assert errors == [(expected.chunks, expected.sha256)]


def test_a_peer_that_sends_a_byte_now_and_then_makes_no_progress() -> None:
    clock = Clock()
    here, there = pair(clock)

    class Trickling(socket.socket):
        """Advances the time with each byte that is waited for."""

        def recv_into(self, buffer: Any, nbytes: int = 0, flags: int = 0) -> int:
            there._socket.sendall(b"\0")
            clock.now += 0.9 * peer_wire.SILENT_SECONDS
            return super().recv_into(buffer, 1)

    here._socket = Trickling(fileno=here._socket.detach())
    with here, there, pytest.raises(TimeoutError, match="takes too long"):
        here.receive()
