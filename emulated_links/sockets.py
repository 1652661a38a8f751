"""Unix sockets in folders with long paths, and TCP sockets on an address of this machine. The in-memory
store and the agent use them too."""

from __future__ import annotations

import os
import socket
from pathlib import Path


def connect(folder: Path, name: str, *, blocking: bool = True) -> socket.socket:
    """Connect to a socket in a folder whose path may exceed the limit of a socket address.

    Raises OSError; unless `blocking`, BlockingIOError if the listener's backlog is full.
    """
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    connection.setblocking(blocking)
    try:
        connection.connect(f"/proc/self/fd/{descriptor}/{name}")
    except OSError:
        connection.close()
        raise
    finally:
        os.close(descriptor)
    return connection


def listen(folder: Path, name: str, user_id: int | None, backlog: int) -> socket.socket:
    """Create a listening socket in a folder, accessible to one user only. Raises OSError."""
    listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    listener.setblocking(False)
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        path = f"/proc/self/fd/{descriptor}/{name}"
        (folder / name).unlink(missing_ok=True)
        listener.bind(path)
        os.chmod(path, 0o600)
        if user_id is not None:
            os.chown(path, user_id, user_id)
    except OSError:
        listener.close()
        raise
    finally:
        os.close(descriptor)
    listener.listen(backlog)
    return listener


def listen_on(address: str, port: int, backlog: int) -> socket.socket:
    """Listen for other servers on one address of this machine. Raises OSError."""
    family, kind, protocol, _name, where = socket.getaddrinfo(
        address, port, type=socket.SOCK_STREAM, flags=socket.AI_PASSIVE
    )[0]
    listener = socket.socket(family, kind, protocol)
    try:
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(backlog)
    except OSError:
        listener.close()
        raise
    return listener
