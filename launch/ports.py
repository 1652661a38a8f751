"""Choice of free ports."""

from __future__ import annotations

import errno
import socket
from collections.abc import Iterator, Mapping

from launch.errors import LaunchError

_TRIED_PORTS = 200


def is_free(host: str, port: int) -> bool:
    """Return whether a server could listen on `host` and `port` now.

    Raises LaunchError when the host is not an address of this machine.
    """
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            # As servers do: a port with only connections in TIME_WAIT is free.
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            probe.listen(1)
    except socket.gaierror as error:
        raise LaunchError(f"{host!r} is no address: set PUNCTUAL_HOST to one of this machine") from error
    except OSError as error:
        if error.errno == errno.EADDRNOTAVAIL:
            raise LaunchError(f"{host} is no address of this machine: set PUNCTUAL_HOST to one") from error
        return False
    return True


def choose(host: str, wanted: Mapping[str, int | None], first_port: int) -> dict[str, int]:
    """Return a port for each name: fixed ones as given in `wanted`, others the next free ones from
    `first_port` on.

    Raises LaunchError if a fixed port is taken, and if no port is free.
    """
    chosen: dict[str, int] = {}
    for name, port in wanted.items():
        if port is None:
            continue
        if port in chosen.values():
            raise LaunchError(f"port {port} is wanted twice")
        if not is_free(host, port):
            raise LaunchError(
                f"port {port} for the {name} is taken on {host}: choose another, or leave it unset"
            )
        chosen[name] = port
    candidates = iter(range(first_port, min(first_port + _TRIED_PORTS, 65536)))
    for name in wanted:
        if name not in chosen:
            chosen[name] = _next_free(host, candidates, set(chosen.values()), first_port)
    return {name: chosen[name] for name in wanted}


def _next_free(host: str, candidates: Iterator[int], taken: set[int], first_port: int) -> int:
    for port in candidates:
        if port not in taken and is_free(host, port):
            return port
    raise LaunchError(f"no free port on {host} from {first_port} on")


def choose_ranges(host: str, count: int, first_port: int, size: int) -> list[tuple[int, int]]:
    """Return `count` ranges of `size` ports each, skipping ranges whose first ports are in use.

    Raises LaunchError if they do not fit below the kernel's ephemeral ports.
    """
    ranges: list[tuple[int, int]] = []
    start = first_port
    while len(ranges) < count:
        if start + size > 32768:
            raise LaunchError(f"no {count} free ranges of {size} ports between {first_port} and 32768")
        if all(is_free(host, port) for port in range(start, start + min(size, 8))):
            ranges.append((start, start + size - 1))
        start += size
    return ranges
