"""Real clients of a real server: transfers take no less time than the links permit."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from emulated_links.client import LinkClient
from emulated_links.load import LinkLoad
from emulated_links.rates import GRADIENTS, NETWORK, STATE, TRAFFIC, WITHIN_SERVER, ServerLinks
from emulated_links.server import LinkServer
from emulated_links.wire import PIECE_BYTES, REQUEST_BYTES, SOCKET_NAME, Request

RATE = 2e7
LINKS = ServerLinks.from_message(
    {
        name: {"bytes_per_second": RATE}
        for name in ("within_server", "network", "spine", "host_to_device", "disk")
    }
)


@pytest.fixture
def server() -> Iterator[LinkServer]:
    started = LinkServer(LINKS)
    started.start()
    yield started
    started.stop()


@pytest.fixture
def box(server: LinkServer, tmp_path: Path) -> Path:
    server.listen("worker", tmp_path)
    return tmp_path


@pytest.fixture
def client(box: Path) -> Iterator[LinkClient]:
    made = LinkClient(LINKS, box)
    yield made
    made.close()


def _carry(client: LinkClient, path: tuple[str, ...], traffic: str, size: int) -> float:
    """Return the seconds of a transfer."""
    started = time.monotonic()
    client.carry(path, traffic, size, started)
    return time.monotonic() - started


def test_a_transfer_ends_no_earlier_than_its_link_allows(client: LinkClient) -> None:
    size = 3 * PIECE_BYTES // 2
    assert _carry(client, (NETWORK,), STATE, size) >= size / RATE
    assert client.unshared == 0


def test_processes_of_a_server_share_its_links(server: LinkServer, tmp_path: Path) -> None:
    size = 2_000_000
    program = (
        "import sys, time; from pathlib import Path\n"
        "from emulated_links.client import LinkClient; from emulated_links.rates import *\n"
        "links = ServerLinks.from_message({name: {'bytes_per_second': float(sys.argv[2])} for name in "
        "DECLARED_LINKS})\n"
        "client = LinkClient(links, Path(sys.argv[1])); print('ready', flush=True); input()\n"
        "client.carry((NETWORK,), sys.argv[3], int(sys.argv[4]), time.monotonic())\n"
        "print(client.unshared, flush=True)"
    )
    processes = []
    for number, traffic in enumerate((GRADIENTS, STATE)):
        folder = tmp_path / str(number)
        folder.mkdir()
        server.listen(str(number), folder)
        processes.append(
            subprocess.Popen(
                [sys.executable, "-c", program, str(folder), str(RATE), traffic, str(size)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                cwd=Path(__file__).parents[2],
            )
        )
    for process in processes:
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    started = time.monotonic()
    for process in processes:
        assert process.stdin is not None
        process.stdin.write("\n")
        process.stdin.flush()
    assert [process.communicate()[0] for process in processes] == ["0\n", "0\n"]
    together = time.monotonic() - started
    assert together >= 2 * size / RATE
    carried = server.carried()[NETWORK]
    assert (carried[GRADIENTS], carried[STATE]) == pytest.approx((size, size), rel=0.01)


def test_without_its_server_a_worker_paces_itself_and_counts_it(tmp_path: Path) -> None:
    client = LinkClient(LINKS, tmp_path)
    size = 1_000_000
    assert _carry(client, (NETWORK,), STATE, size) >= size / RATE
    assert client.unshared == 1


def test_a_worker_finds_a_server_that_came_back(tmp_path: Path) -> None:
    client = LinkClient(LINKS, tmp_path)
    client.transfer((NETWORK,), STATE, 1000, time.monotonic())
    server = LinkServer(LINKS)
    server.start()
    server.listen("worker", tmp_path)
    try:
        deadline = time.monotonic() + 60
        while not server.carried()[NETWORK][STATE]:
            assert time.monotonic() < deadline
            client.transfer((NETWORK,), STATE, 1000, time.monotonic())
    finally:
        client.close()
        server.stop()


@pytest.mark.parametrize(
    "record",
    [
        b"\xff" * REQUEST_BYTES,
        b"\x00" * REQUEST_BYTES,
        Request(STATE, (NETWORK,), PIECE_BYTES, 0.0).to_bytes()[:-8] + b"\xff" * 8,
        Request(STATE, (NETWORK,), PIECE_BYTES, 0.0).to_bytes() * 3,
    ],
    ids=["noise", "no link", "no time", "without waiting"],
)
def test_nonsense_ends_only_its_own_connection(box: Path, client: LinkClient, record: bytes) -> None:
    descriptor = os.open(box, os.O_RDONLY | os.O_DIRECTORY)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as hostile:
        hostile.connect(f"/proc/self/fd/{descriptor}/{SOCKET_NAME}")
        hostile.sendall(record)
        hostile.settimeout(60)
        try:
            assert hostile.recv(64) == b""
        except ConnectionResetError:
            pass
    os.close(descriptor)
    assert _carry(client, (WITHIN_SERVER,), GRADIENTS, 10_000) >= 10_000 / RATE
    assert client.unshared == 0


def test_the_load_is_reported_by_link_and_class(server: LinkServer, client: LinkClient) -> None:
    load = LinkLoad(server)
    client.carry((NETWORK,), STATE, 500_000, time.monotonic())
    now = load.now()
    assert set(now) == {NETWORK}
    assert set(now[NETWORK]) == {STATE}
    assert 0 < now[NETWORK][STATE] <= RATE * 1.01
    assert load.now() == {}


def test_agents_and_control_plane_share_names_of_links_and_classes() -> None:
    from typing import get_args

    from emulated_links.rates import LINKS as NAMES
    from punctual.protocol import links as protocol

    assert get_args(protocol.LinkName) == NAMES
    assert get_args(protocol.TrafficName) == TRAFFIC
