"""A store accepts the next copy of a shard as soon as it has acknowledged the last one."""

from __future__ import annotations

import hashlib
import queue
import struct
import zlib
from collections.abc import Callable
from pathlib import Path

import pytest

from recovery.store import peer_wire
from recovery.store.groups import Group, Groups
from recovery.store.holdings import Holdings
from recovery.store.links import StoreLinks
from recovery.store.peer_wire import Peer
from recovery.store.peers import Peers
from tests.recovery.test_peers import SECRET, put
from tests.recovery.test_store import SECONDS
from workers.runtime.at_home.local_ports import free_port

CHUNK = b"0123456789"


def test_the_next_copy_is_accepted_once_the_last_was_acknowledged(tmp_path: Path) -> None:
    """Pending work in the store's own thread does not delay it."""
    port = free_port()
    works: queue.Queue[Callable[[], None]] = queue.Queue()
    peers = Peers(Holdings(1000), works.put, lambda: None, StoreLinks(tmp_path))
    group = Group(SECRET, keep=frozenset({0}))
    peers.obey(("127.0.0.1", port), Groups("second", {("job", 1): group}))

    def call() -> peer_wire.Channel:
        channel = peer_wire.call(Peer("second", "127.0.0.1", port), "job", 1, SECRET, lambda: None)
        channel.allow(SECONDS)
        return channel

    def work() -> None:
        works.get(timeout=SECONDS)()

    with call() as first, call() as next_one, call() as third:
        first.send(put())
        work()
        assert first.receive() == {"ready": True}
        first._socket.sendall(struct.pack(">II", len(CHUNK), zlib.crc32(CHUNK)) + CHUNK)
        assert first._socket.recv(1) == b"+", "its buffer is free"
        first.send({"end": hashlib.sha256(CHUNK).hexdigest()})
        work()
        assert first.receive() == {"whole": 9}
        late = works.get(timeout=SECONDS)
        next_one.send(put(iteration=10, committed=9))
        work()
        assert next_one.receive() == {"ready": True}
        late()
        third.send(put(iteration=11, committed=9))
        work()
        with pytest.raises(peer_wire.PeerRefusedError, match="another copy of rank 0 is on its way"):
            third.receive()
    peers.close()
