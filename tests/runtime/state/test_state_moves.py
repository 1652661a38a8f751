"""Moving a state takes no less time than the emulated links on its way permit."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path

import pytest
import torch

from emulated_links.rates import (
    DISK,
    HOST_TO_DEVICE,
    NETWORK,
    NETWORK_IN,
    SPINE,
    STATE,
    WITHIN_SERVER,
    ServerLinks,
)
from emulated_links.server import LinkServer
from tests.runtime.conftest import emulated
from workers.runtime.at_home.local_ports import LOOPBACK, free_port
from workers.runtime.emulation.emulated_network import Emulation
from workers.runtime.emulation.places import Places
from workers.runtime.state.handover import HandoverServer, open_handover
from workers.runtime.state.moves import StateMoves
from workers.runtime.state.shards import Shard, own_shard

SLOW = 2e7
LINKS = ServerLinks.from_message(
    emulated(
        within_server=4 * SLOW,
        network=2 * SLOW,
        spine={"bytes_per_second": SLOW},
        disk={"bytes_per_second": SLOW},
    )["links"]
)
WEIGHTS = torch.arange(500_000, dtype=torch.float32)
STATE_OF_A_JOB = {"generation": 3, "iteration": 8, "model": {"weight": WEIGHTS}, "optimizer": {"state": {}}}
SHARD: Shard = own_shard(STATE_OF_A_JOB, frozenset({"weight"}), rank=0, world_size=1, copy=False)


def _place(server: int, rack: int) -> bytes:
    return server.to_bytes(8, "big") + rack.to_bytes(8, "big")


class Machine:
    """An emulated server with a worker on it."""

    def __init__(self, box: Path, place: bytes) -> None:
        self.links = LinkServer(LINKS)
        self.links.start()
        self.links.listen("worker", box)
        self.emulation = Emulation(LINKS, Places((0,), (0,)), box)
        self.moves = StateMoves(self.emulation, place)

    def close(self) -> None:
        self.emulation.client.close()
        self.links.stop()

    def carried(self, link: str) -> float:
        return self.links.carried()[link][STATE]


@pytest.fixture
def sender(tmp_path: Path) -> Iterator[Machine]:
    (tmp_path / "sender").mkdir()
    with closing(Machine(tmp_path / "sender", _place(0, 0))) as machine:
        yield machine


def _hand_over(sender: Machine, receiver: Machine) -> float:
    """Return the seconds of a hand-over."""
    server = HandoverServer(LOOPBACK, free_port(), "secret", 3, sender.moves)
    server.publish(SHARD)
    end = time.monotonic() + 60
    begun = time.monotonic()
    opened = open_handover(
        LOOPBACK,
        server.port,
        secret="secret",
        predecessor=3,
        generation=4,
        still_wanted=lambda: time.monotonic() < end,
        pause=time.sleep,
        moves=receiver.moves,
    )
    assert opened is not None
    with closing(opened) as shard:
        received = torch.empty_like(WEIGHTS)
        shard.read_into(memoryview(received.view(torch.uint8).numpy()))
        shard.finish()
    assert torch.equal(received, WEIGHTS)
    return time.monotonic() - begun


@pytest.mark.parametrize(
    ("place", "ways", "rate"),
    [
        (_place(0, 0), [WITHIN_SERVER], 4 * SLOW),
        (_place(1, 0), [NETWORK], 2 * SLOW),
        (_place(1, 1), [NETWORK, SPINE], SLOW),
    ],
    ids=["same server", "other server", "other rack"],
)
def test_a_hand_over_takes_the_links_between_the_two_workers(
    tmp_path: Path, sender: Machine, place: bytes, ways: list[str], rate: float
) -> None:
    (tmp_path / "receiver").mkdir()
    with closing(Machine(tmp_path / "receiver", place)) as receiver:
        assert _hand_over(sender, receiver) >= SHARD.bytes / rate
        for link in (WITHIN_SERVER, NETWORK, SPINE):
            expected = SHARD.bytes if link in ways else 0
            assert sender.carried(link) == pytest.approx(expected, abs=rate * 1e-4)
        arriving = 0 if WITHIN_SERVER in ways else SHARD.bytes
        assert receiver.carried(NETWORK_IN) == pytest.approx(arriving, abs=rate * 1e-4)


def test_copies_and_files_take_their_links(sender: Machine) -> None:
    for move, link in ((sender.moves.copied, HOST_TO_DEVICE), (sender.moves.stored, DISK)):
        begun = time.monotonic()
        move(1_000_000, begun)
        assert time.monotonic() - begun >= 1_000_000 / LINKS.rate(link).bytes_per_second
        assert sender.carried(link) == pytest.approx(1_000_000, abs=1e5)


def test_real_devices_add_no_waits() -> None:
    moves = StateMoves()
    begun = time.monotonic()
    moves.copied(10**15, begun)
    moves.stored(10**15, begun)
    moves.sent(10**15, begun, _place(3, 4))
    moves.received(10**15, begun, _place(3, 4))
