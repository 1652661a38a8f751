"""A server dies with its experts: they resume from the copies on another server."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest
import torch.distributed as dist

from tests.communication.hooks.ranks import run_on_ranks
from tests.recovery.test_peers import Server
from tests.recovery.test_store import SECONDS, wait_until
from tests.runtime.experts.test_expert_parallel import ITERATIONS, RANKS, Trained, go_on_from, store
from workers.runtime.state.memory_points import MemoryPoints, open_from_memory
from workers.runtime.state.shards import Shard, read_shard


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    """Yield two servers, one for each rank. Each keeps copies of the other's shard."""
    made = [Server(tmp_path / str(rank), str(rank)) for rank in range(RANKS)]
    for rank, server in enumerate(made):
        peer = made[1 - rank].as_peer
        server.join(keep=[1 - rank], send=[{"rank": rank, "peers": [peer]}])
    yield made
    for server in made:
        server.end()


def train(path: str) -> None:
    """Train; store this rank's shard."""
    store(Trained(8, {}).runner, Path(path))
    if dist.get_rank() == 0:
        assert read_shard(Path(path) / f"{RANKS}-0.pt").description["experts"]


def keep(server: Server, rank: int, shard: Shard) -> None:
    """Keep a shard in a server's memory until it has a copy."""
    worker = server.worker(rank=rank)
    wait_until(worker.idle, "the store is there")
    worker.ask_for_room(2 * shard.bytes + (1 << 20), None)
    assert MemoryPoints(worker, 1.0).keep_last(shard, SECONDS)
    wait_until(lambda: (2, 2) in server.copies(), "the copy is there")


def test_experts_of_a_dead_server_come_from_their_copy(
    alone: None, servers: list[Server], tmp_path: Path
) -> None:
    expected = Trained(8, {}).runner.run(ITERATIONS).values["loss"]
    run_on_ranks(RANKS, train, str(tmp_path))
    for rank, server in enumerate(servers):
        keep(server, rank, read_shard(tmp_path / f"{RANKS}-{rank}.pt"))
    dead, left = servers
    dead.end()
    left.join(fetch=[{"rank": rank, "peers": []} for rank in range(RANKS)])
    opened = open_from_memory(left.worker(generation=2), range(RANKS), generation=1)
    runner = go_on_from(opened, [0] * RANKS)
    for shard in opened.values():
        shard.close()
    assert runner.run(ITERATIONS).values["loss"] == pytest.approx(expected, rel=1e-5)
