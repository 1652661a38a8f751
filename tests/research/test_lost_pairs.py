"""Five servers keep each other's state in pairs: which two may be lost together, with real stores."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import combinations
from pathlib import Path

import pytest

from recovery.placement.strategies import Placement, place
from research.gemini.points.versions import KeptState, Slot, recoverable_version
from tests.recovery.test_peers import Server
from tests.recovery.test_store import SECONDS, write

MACHINES, REPLICAS, VERSION, BYTES = 5, 2, 7, 1000
HOUR = 3600.0


@pytest.fixture
def servers(tmp_path: Path) -> Iterator[list[Server]]:
    made = [Server(tmp_path / f"node-{rank}", f"node-{rank}") for rank in range(MACHINES)]
    yield made
    for server in made:
        server.end()


def keep_a_point(servers: list[Server], placement: Placement) -> None:
    """Store a complete version of rank r, on server r and its peers."""
    for rank, server in enumerate(servers):
        peers = [servers[holder].as_peer for holder in placement.holders[rank][1:]]
        keep = [owner for owner in range(MACHINES) if rank in placement.holders[owner][1:]]
        server.join(send=[{"rank": rank, "peers": peers}], keep=keep)
    for rank, server in enumerate(servers):
        write(server.worker(rank=rank), VERSION, size=BYTES)


def lose(servers: list[Server], seconds: float) -> None:
    """Fence these servers: their stores answer no reads. Negative: restore them."""
    for server in servers:
        server.lease -= seconds
        server.tell()


def found_by(servers: list[Server], placement: Placement, lost: set[int], generation: int) -> list[set[int]]:
    """Return the shards of each rank that a new generation finds, on its own server or at the holders."""
    there = [rank for rank in range(MACHINES) if rank not in lost]
    versions_by_rank = []
    for rank in range(MACHINES):
        asked = servers[rank if rank in there else there[0]]
        holders = [servers[holder] for holder in placement.holders[rank]]
        peers = [holder.as_peer for holder in holders if holder is not asked]
        asked.join(fetch=[{"rank": rank, "peers": peers}])
        versions_by_rank.append(asked.worker(generation=generation, rank=rank).find(rank, 1, SECONDS))
    return versions_by_rank


def test_six_of_ten_pairs_of_servers_may_be_lost_and_every_single_one(servers: list[Server]) -> None:
    """Two of a group keep each other's state, three are a ring: each pair within a group takes a state along.

    Real stores answer as placement predicts, for every loss of one server and of two.
    """
    placement = place(MACHINES, REPLICAS)
    keep_a_point(servers, placement)
    states = [KeptState(owner, holder, (Slot(VERSION, True), Slot()))
            for owner in range(MACHINES) for holder in placement.holders[owner]]  # fmt: skip
    recovered = {1: 0, 2: 0}
    losses = [set(lost) for size in recovered for lost in combinations(range(MACHINES), size)]
    for generation, lost in enumerate(losses, start=2):
        lose([servers[machine] for machine in lost], HOUR)
        versions_by_rank = found_by(servers, placement, lost, generation)
        lose([servers[machine] for machine in lost], -HOUR)
        is_whole = all(versions_by_rank)
        assert is_whole == (recoverable_version(states, MACHINES, lost) == VERSION)
        assert all(versions in (set(), {VERSION}) for versions in versions_by_rank)
        recovered[len(lost)] += is_whole
    assert recovered == {1: 5, 2: 6}
