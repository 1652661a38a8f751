"""TCP ports on this machine for processes that have not started yet.

A port that is found by binding port 0 can be taken once it is closed again: the kernel gives the same ports
to outgoing connections. These ports are below the kernel's range, and each process has blocks of its own.
"""

from __future__ import annotations

import socket
from collections.abc import Iterator

LOOPBACK = "127.0.0.1"
FIRST, LAST = 10_000, 17_999
BLOCK = 100


def free_port() -> int:
    """Return a port that nobody listens on, and that no other process gets from this function."""
    return next(_own_ports)


def _bound(port: int) -> socket.socket | None:
    """A socket bound to the port, or None if the port is taken."""
    bound = socket.socket()
    try:
        bound.bind((LOOPBACK, port))
    except OSError:
        bound.close()
        return None
    return bound


def _ports() -> Iterator[int]:
    for first in range(FIRST, LAST, BLOCK):
        # A block is free if its first port is: the process that has it keeps that port bound to its own end.
        if (holder := _bound(first)) is not None:
            holder.detach()
            for port in range(first + 1, first + BLOCK):
                if (probe := _bound(port)) is not None:
                    probe.close()
                    yield port
    raise OSError(f"all blocks of {BLOCK} ports from {FIRST} to {LAST} are taken")


_own_ports = _ports()
