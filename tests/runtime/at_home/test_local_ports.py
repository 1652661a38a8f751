"""Each process gets its own ports, and no port that is in use."""

from __future__ import annotations

import socket
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from workers.runtime.at_home import local_ports
from workers.runtime.at_home.local_ports import BLOCK, LOOPBACK, free_port

COUNT = 3
PROGRAM = f"""
from workers.runtime.at_home.local_ports import free_port
print(*(free_port() for _ in range({COUNT})), flush=True)
input()
"""


@pytest.fixture
def begin(monkeypatch: pytest.MonkeyPatch) -> Callable[[], Callable[[], int]]:
    """Start as another process would."""

    def begin() -> Callable[[], int]:
        monkeypatch.setattr(local_ports, "_own_ports", local_ports._ports())
        return free_port

    return begin


def test_processes_get_ports_of_their_own() -> None:
    others = [
        subprocess.Popen(
            [sys.executable, "-c", PROGRAM], cwd=Path(__file__).parents[3],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )
        for _ in range(2)
    ]  # fmt: skip
    ports = [free_port() for _ in range(COUNT)]
    for process in others:
        assert process.stdout is not None
        ports += map(int, process.stdout.readline().split())
    for process in others:
        process.communicate("\n")
    assert len(set(ports)) == 3 * COUNT


def test_ports_are_below_those_of_outgoing_connections(begin: Callable[[], Callable[[], int]]) -> None:
    lowest = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    ports = [begin()() for _ in range(COUNT)]
    assert max(ports) < lowest
    assert len({port // BLOCK for port in ports}) == COUNT, "each process has another block"


def test_a_port_in_use_is_left_out(begin: Callable[[], Callable[[], int]]) -> None:
    take = begin()
    before = take()
    with socket.create_server((LOOPBACK, before + 1)):
        assert take() > before + 1
