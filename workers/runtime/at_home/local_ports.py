"""TCP ports on this machine for processes that have not started yet.

A port found by binding port 0 can be taken again once it is closed, as the kernel gives the same ports to
outgoing connections. These ports are below the kernel's range, and each process has its own blocks.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

LOOPBACK = "127.0.0.1"
FIRST, LAST = 10_000, 17_999
BLOCK = 100


def free_port() -> int:
    """Return a free port that no other process gets from this function."""
    return next(_own_ports)


def _bound(port: int) -> socket.socket | None:
    """Return a socket bound to the port, or None if the port is taken."""
    bound = socket.socket()
    try:
        bound.bind((LOOPBACK, port))
    except OSError:
        bound.close()
        return None
    return bound


def _ports() -> Iterator[int]:
    for first in range(FIRST, LAST, BLOCK):
        # A block is free if its first port is: its owner keeps that port bound for its whole life.
        if (holder := _bound(first)) is not None:
            holder.detach()
            for port in range(first + 1, first + BLOCK):
                if (probe := _bound(port)) is not None:
                    probe.close()
                    yield port
    raise OSError(f"all blocks of {BLOCK} ports from {FIRST} to {LAST} are taken")


_own_ports = _ports()
