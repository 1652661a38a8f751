"""Stores of several servers: copies of each other's shards, fetches, and refused callers."""

from __future__ import annotations

import hashlib
import hmac
import json
import os
import signal
import socket
import struct
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from recovery.store import peer_wire
from recovery.store.allowances import Sending
from recovery.store.client import Standing, StoreClient, StoreError
from recovery.store.groups import Group, Groups
from recovery.store.holdings import Holdings, Owner, Version
from recovery.store.links import StoreLinks
from recovery.store.memory import Region, checksums
from recovery.store.peer_wire import Peer
from recovery.store.peers import Peers
from tests.recovery.test_store import LIMIT_BYTES, SECONDS, Node, content, read, wait_until, write
from workers.runtime.at_home.local_ports import free_port

SECRET = "known to the servers of this generation"


class Server(Node):
    """A node with a name and a port, in a group for generation 1 of "job"."""

    def __init__(self, folder: Path, name: str) -> None:
        folder.mkdir()
        self.port = free_port()
        self.name = name
        super().__init__(folder)
        self.group: dict[str, Any] = {}
        self.join()

    @property
    def as_peer(self) -> dict[str, Any]:
        return {"server": self.name, "address": "127.0.0.1", "port": self.port}

    def join(self, **changes: Any) -> None:
        """Set what it sends, keeps and fetches of generation 1."""
        empty = {"job": "job", "generation": 1, "secret": SECRET, "send": [], "keep": [], "fetch": []}
        self.group = {**empty, **self.group, **changes}
        self.peers = {
            "server": self.name, "address": "127.0.0.1", "port": self.port, "groups": [self.group],
        }  # fmt: skip
        self.tell()

    def call(self, secret: str = SECRET, generation: int = 1) -> peer_wire.Channel:
        """Call it as another server's store does."""
        peer = Peer(self.name, "127.0.0.1", self.port)
        return peer_wire.call(peer, "job", generation, secret, lambda: None)

    def copies(self) -> list[tuple[int, int]]:
        return [
            (holding["copies"], holding["wanted_copies"])
            for holding in self.tell()["holdings"]
            if "copies" in holding
        ]


@pytest.fixture
def start(tmp_path: Path) -> Iterator[Callable[[str], Server]]:
    made: list[Server] = []

    def begin(name: str) -> Server:
        made.append(Server(tmp_path / name, name))
        return made[-1]

    yield begin
    for server in made:
        server.end()


@pytest.fixture
def first(start: Callable[[str], Server]) -> Server:
    return start("first")


@pytest.fixture
def second(start: Callable[[str], Server], first: Server) -> Server:
    """Return a server that keeps a copy of rank 0, whose worker is on the first server."""
    other = start("second")
    other.join(keep=[0])
    first.join(send=[{"rank": 0, "peers": [other.as_peer]}])
    return other


def later_worker(server: Server, *sources: Server) -> StoreClient:
    """Return a worker of generation 2 that reads rank 0's shard on that server."""
    server.join(fetch=[{"rank": 0, "peers": [source.as_peer for source in sources]}])
    return server.worker(generation=2)


def test_a_version_is_complete_once_a_peer_holds_it(first: Server, second: Server) -> None:
    worker = first.worker()
    write(worker, 7, size=3 * 1024 * 1024 // 2)
    assert second.held() == [("job", 1, 0, 7)]
    assert first.copies() == [(2, 2)]
    assert worker.standing(7) is Standing.SAFE, "the loss of this server would leave it"
    assert first.tell()["protection"] == "full"
    # The peer has two slots, too: the committed version stays while the next one arrives.
    write(worker, 8, committed=7, size=3 * 1024 * 1024 // 2)
    later = later_worker(second)
    assert later.find(0, 1, SECONDS) == {7, 8}
    assert read(later.open(0, 1, 8, SECONDS), 3 * 1024 * 1024 // 2) == content(8, 3 * 1024 * 1024 // 2)


def test_the_state_of_a_server_that_died_is_fetched_from_its_peer(
    start: Callable[[str], Server], first: Server, second: Server
) -> None:
    third = start("third")
    # More than a chunk, and not a whole number of chunks.
    size = 5_000_000 // 3
    worker = first.worker()
    write(worker, 7, size=size)
    write(worker, 8, committed=7, size=size)
    first.end()
    later = later_worker(third, first, second)
    assert later.find(0, 1, SECONDS) == {7, 8}
    shard = later.open(0, 1, 8, SECONDS)
    assert shard.description == b"head"
    assert read(shard, size) == content(8, size)
    # The request froze it: an owner that is alive after all cannot continue there.
    with second.call() as channel:
        assert refusal(channel, put()) == "a later generation has taken over"
    # Once all servers have a point of the new generation, the fetched one is deleted.
    write(later, 9, size=1000)
    write(later, 10, committed=9, size=1000)
    assert third.held() == [("job", 2, 0, 10)]


def test_workers_asking_at_once_all_learn_a_peers_versions(
    start: Callable[[str], Server], first: Server, second: Server
) -> None:
    third = start("third")
    write(first.worker(), 7)
    first.end()
    workers = [later_worker(third, first, second), third.worker(generation=3)]
    for worker in workers:
        wait_until(worker.idle, "the store is there")
    with ThreadPoolExecutor(2) as threads:
        versions = list(threads.map(lambda worker: worker.find(0, 1, SECONDS), workers))
    assert versions == [{7}, {7}]


def test_a_shard_damaged_at_one_holder_comes_from_the_next(
    start: Callable[[str], Server], first: Server, second: Server
) -> None:
    third = start("third")
    worker = first.worker()
    write(worker, 7)
    room = next(room for room in worker._rooms if room.holds == 7)
    os.pwrite(room.descriptor, b"\xff", 60_000)
    later = later_worker(third, first, second)
    assert later.find(0, 1, SECONDS) == {7}
    assert read(later.open(0, 1, 7, SECONDS)) == content(7)


def test_a_fetch_without_any_holder_names_each_failure(
    start: Callable[[str], Server], first: Server, second: Server
) -> None:
    third = start("third")
    write(first.worker(), 7)
    later = later_worker(third, first, second)
    assert later.find(0, 1, SECONDS) == {7}
    first.end()
    second.end()
    with pytest.raises(StoreError, match="could not be fetched: server first: .*; server second: "):
        later.open(0, 1, 7, SECONDS)
    assert third.tell()["used_bytes"] == 0


def test_a_dead_or_frozen_peer_does_not_stop_training(
    start: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(Server, "pause_seconds", 0.2)
    first, second = start("first"), start("second")
    second.join(keep=[0])
    first.join(send=[{"rank": 0, "peers": [second.as_peer]}])
    worker = first.worker()
    write(worker, 7)
    os.kill(second.process_id, signal.SIGSTOP)
    write(worker, 8, committed=7)
    assert first.copies() == [(1, 2)]
    assert worker.standing(8) is Standing.LACKING
    report = first.tell()
    assert report["protection"] == "none"
    assert report["problem"].startswith("server second keeps no copy")
    os.kill(second.process_id, signal.SIGCONT)
    number = iter(range(9, 100_000))

    def protected() -> bool:
        after = next(number)
        write(worker, after, committed=after - 1)
        return first.copies() == [(2, 2)]

    wait_until(protected, "copies are kept again")
    assert first.tell()["problem"] == ""
    second.end()
    after = next(number)
    write(worker, after, committed=after - 1)


def test_a_peer_without_room_says_so_and_never_overcommits(first: Server, second: Server) -> None:
    for number in range(2):
        write(second.worker(f"other-{number}"), 7, size=LIMIT_BYTES // 4 - 1000)
    worker = first.worker()
    write(worker, 7, size=LIMIT_BYTES // 8)
    assert first.copies() == [(1, 2)]
    assert worker.standing(7) is Standing.LACKING
    problem = first.tell()["problem"]
    assert problem.startswith("server second keeps no copy")
    assert f"of {LIMIT_BYTES} are left" in problem
    assert second.tell()["used_bytes"] <= LIMIT_BYTES


@pytest.mark.parametrize("lacking", ["threads", "descriptors"])
def test_a_store_without_reachable_peers_keeps_points_without_copies(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, lacking: str
) -> None:
    holdings, owner = Holdings(1000), Owner("job", 1, 0)
    later: list[Callable[[], None]] = []
    messages: list[str] = []
    holdings.reserve(owner, 1, 100, None, 1000)
    holdings.begin(owner, 0, None)
    region = holdings.end(owner, 0, 7, 100, 0)
    version = Version(7, 100, 0, checksums(region.descriptor, 100), 0.0)
    holdings.checked(owner, 0, version)
    peers = Peers(holdings, later.append, lambda: None, StoreLinks(tmp_path))
    others = (Peer("b", "127.0.0.1", 1), Peer("c", "127.0.0.1", 2))
    peers.obey(None, Groups("a", {("job", 1): Group(SECRET, send={0: others})}))

    def none_left(*_: object) -> None:
        raise RuntimeError("no threads") if lacking == "threads" else OSError("no descriptors")

    if lacking == "threads":
        monkeypatch.setattr(threading.Thread, "start", none_left)
    else:
        monkeypatch.setattr(Region, "open_to_read", none_left)
    peers.copy(owner, 0, version, Sending(), lambda _sent: messages.append("whole"))
    for work in later:
        work()
    assert messages == ["whole"]
    assert peers.copies_of(owner) == {"copies": 1, "wanted_copies": 3}
    assert peers.report()["problem"] == f"server b keeps no copy: no {lacking}"


def put(rank: int = 0, size: int = 10, **changes: Any) -> dict[str, Any]:
    return {
        "put": rank, "iteration": 9, "bytes": size, "description_bytes": 0, "capacity": size,
        "committed": None, "world_size": 1, "buffers": 4, **changes,
    }  # fmt: skip


def refusal(channel: peer_wire.Channel, message: dict[str, Any]) -> str:
    channel.allow(SECONDS)
    channel.send(message)
    with pytest.raises(peer_wire.PeerRefusedError) as refused:
        channel.receive()
    return str(refused.value)


def test_a_store_keeps_only_the_copies_assigned_to_it(second: Server) -> None:
    with second.call() as channel:
        assert refusal(channel, put(rank=1)) == "no copy of rank 1 is kept here"
        assert "in a slot of" in refusal(channel, put(capacity=5))
        assert "are left" in refusal(channel, put(size=LIMIT_BYTES))
    assert second.tell()["used_bytes"] == 0


@pytest.mark.parametrize(("secret", "generation"), [("guessed", 1), (SECRET, 2), (SECRET, 0)])
def test_a_caller_without_the_secret_is_refused(second: Server, secret: str, generation: int) -> None:
    with pytest.raises(OSError, match="closed the connection|does not know the secret|reset"):
        second.call(secret, generation).close()


def test_no_data_is_sent_to_a_server_without_the_secret(first: Server) -> None:
    with socket.create_server(("127.0.0.1", 0)) as impostor:
        peer = {"server": "second", "address": "127.0.0.1", "port": impostor.getsockname()[1]}
        first.join(send=[{"rank": 0, "peers": [peer]}])
        worker = first.worker()
        impostor.settimeout(SECONDS)
        wait_until(worker.idle, "the store is there")
        worker.ask_for_room(1000, None)
        wait_until(lambda: worker.fits(1000, None), "there is room")
        worker.write(7, [b"secret state"], size=12, description_bytes=0, committed=None)
        connection, _ = impostor.accept()
        with connection:
            connection.settimeout(SECONDS)
            heard = connection.recv(4096)
            connection.sendall(os.urandom(64))
            heard += b"".join(iter(lambda: connection.recv(4096), b""))
        wait_until(lambda: worker.holds(7), "it is kept without a copy")
    assert b"secret state" not in heard
    assert first.copies() == [(1, 2)]


def test_a_frame_that_was_altered_on_its_way_ends_the_connection(second: Server) -> None:
    channel = second.call()
    channel.allow(SECONDS)
    body = json.dumps(put()).encode()
    forged = hmac.new(b"another key", body, hashlib.sha256).digest()
    channel._socket.sendall(struct.pack(">I", len(body)) + body + forged)
    with channel, pytest.raises(OSError, match="closed|reset"):
        channel.receive()


@pytest.mark.parametrize("what", ["the chunk", "the digest", "the length", "half of it"])
def test_a_copy_that_differs_from_what_was_sent_never_counts(
    first: Server, second: Server, what: str
) -> None:
    worker = first.worker()
    write(worker, 7)
    with second.call() as channel:
        channel.allow(SECONDS)
        channel.send(put())
        assert channel.receive() == {"ready": True}
        chunk = b"0123456789"
        length, checksum = len(chunk), 0xA684C7C6  # its CRC-32
        if what == "the length":
            length = 0xFFFFFFFF
        sent = struct.pack(">II", length, checksum) + (b"9" + chunk[1:] if what == "the chunk" else chunk)
        channel._socket.sendall(sent[:12] if what == "half of it" else sent)
        if what == "the digest":
            channel.send({"end": "0" * 64})
        if what == "half of it":
            channel.close()
        else:
            with pytest.raises(OSError, match="closed|reset"):
                channel.receive()
    assert second.held() == [("job", 1, 0, 7)]
    write(worker, 8, committed=7)
    assert second.held() == [("job", 1, 0, 8)], "and the next one finds its place"


@pytest.mark.parametrize(
    "said",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        struct.pack(">I", 0xFFFFFFFF),
        struct.pack(">I", 2) + b"[]" + bytes(32),
        struct.pack(">I", 9) + b'{"job":1}' + bytes(32),
        struct.pack(">I", 4) + b"[[[[" + bytes(32),
    ],
)
def test_a_stranger_is_disconnected_and_delays_no_caller(first: Server, second: Server, said: bytes) -> None:
    with socket.create_connection(("127.0.0.1", second.port), timeout=SECONDS) as stranger:
        stranger.sendall(said)
        try:
            assert stranger.recv(100) == b""
        except ConnectionResetError:
            pass
    # Silent callers do not delay a peer while there are few of them.
    with socket.create_connection(("127.0.0.1", second.port)):
        write(first.worker(), 7)
        assert first.copies() == [(2, 2)]


def test_a_store_without_a_lease_refuses_reads_and_writes(first: Server, second: Server) -> None:
    worker = first.worker()
    write(worker, 7)
    with second.call() as open_before:
        second.lease = time.clock_gettime(time.CLOCK_BOOTTIME)
        second.tell()
        open_before.allow(SECONDS)
        open_before.send({"list": 0})
        with pytest.raises(OSError, match="closed|reset"):
            open_before.receive()
    with pytest.raises(OSError, match="closed|reset"):
        second.call().close()
    write(worker, 8, committed=7)
    assert first.copies() == [(1, 2)]
    # Fenced itself, it sends nothing.
    second.lease += 1000.0
    second.tell()
    assert second.held() == [("job", 1, 0, 7)]
