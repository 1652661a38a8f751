"""A store's memory while points come and go stays within what placement reserves for it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from recovery.placement.memory import SLOTS
from tests.recovery import test_store
from tests.recovery.test_peers import Server, start
from tests.recovery.test_store import write

__all__ = ["start"]

#: Besides its states a store has buffers of some megabytes, whatever the size of a shard.
REPLICAS, SHARD_BYTES, VERSIONS = 2, 40_000_000, 3


def kept_bytes(server: Server) -> int:
    """Return the bytes of the store's files in memory."""
    folder, bytes_by_inode = Path(f"/proc/{server.process_id}/fd"), {}
    for descriptor in folder.iterdir():
        with suppress(FileNotFoundError):
            if "memfd:" in os.readlink(descriptor):
                file = os.stat(descriptor)
                bytes_by_inode[file.st_ino] = file.st_blocks * 512
    return sum(bytes_by_inode.values())


def own_bytes(server: Server) -> int:
    """Return the bytes of the store's process, without its mapping of those files."""
    status = Path(f"/proc/{server.process_id}/status").read_text()
    sizes = {line.split(":")[0]: int(line.split()[1]) * 1024 for line in status.splitlines() if " kB" in line}
    return sizes["RssAnon"]


def test_two_servers_protecting_each_other_stay_within_their_memory(
    start: Callable[[str], Server], monkeypatch: pytest.MonkeyPatch
) -> None:
    """At most 2 · m · C, and a tenth of it beside."""
    monkeypatch.setattr(test_store, "LIMIT_BYTES", 8 * SHARD_BYTES)
    monkeypatch.setattr(test_store, "WORKER_BYTES", 4 * SHARD_BYTES)
    servers = [start("first"), start("second")]
    for rank, (here, there) in enumerate(zip(servers, reversed(servers), strict=True)):
        here.join(send=[{"rank": rank, "peers": [there.as_peer]}], keep=[1 - rank])
    workers = [server.worker(rank=rank) for rank, server in enumerate(servers)]
    before = [own_bytes(server) for server in servers]
    most = SLOTS * REPLICAS * SHARD_BYTES
    for version in range(1, VERSIONS + 1):
        for worker in workers:
            write(worker, version, committed=version - 1 or None, size=SHARD_BYTES)
        for server, base in zip(servers, before, strict=True):
            assert kept_bytes(server) + max(0, own_bytes(server) - base) <= 1.1 * most
    assert all(kept_bytes(server) >= 0.99 * most for server in servers), "the two slots of both are in use"
    assert all(server.copies() == [(2, 2)] for server in servers)
