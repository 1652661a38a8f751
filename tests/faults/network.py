"""Agents with addresses of their own: a network namespace each, joined by a bridge. For root on Linux."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from types import TracebackType
from typing import Self

from faults.injecting import Undo

#: Rate of a slow link: a point of a small model passes in a second, a large one does not.
SLOW = ["rate", "400kbit", "burst", "32kbit", "latency", "500ms"]
PROGRAMS = ("ip", "tc", "nsenter")


class NoNetworksError(RuntimeError):
    """This machine does not permit network namespaces."""


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise NoNetworksError(f"{' '.join(command)}: {done.stderr.strip()}")


class Networks:
    """A namespace for each server, and a bridge on which the machine itself has an address."""

    def __init__(self, servers: Sequence[str]) -> None:
        self._servers = list(servers)
        number = os.getpid() % 65536
        self._bridge = f"pf{number:x}"
        self._prefix = f"10.{number >> 8}.{number & 255}"

    @property
    def gateway(self) -> str:
        """Return the machine's own address on the bridge."""
        return f"{self._prefix}.1"

    def address(self, server: str) -> str:
        return f"{self._prefix}.{10 + self._servers.index(server)}"

    def namespace(self, server: str) -> str:
        return f"{self._bridge}-{server}"

    def file(self, server: str) -> str:
        """Return the namespace's file for nsenter."""
        return str(Path("/run/netns", self.namespace(server)))

    def __enter__(self) -> Self:
        """Create them. Raises NoNetworksError after removing everything."""
        missing = [program for program in PROGRAMS if shutil.which(program) is None]
        if missing or os.geteuid() != 0:
            raise NoNetworksError(f"without {', '.join(missing) or 'root'} there are no network namespaces")
        try:
            run("ip", "link", "add", self._bridge, "type", "bridge")
            run("ip", "address", "add", f"{self.gateway}/24", "dev", self._bridge)
            run("ip", "link", "set", self._bridge, "up")
            for number, server in enumerate(self._servers):
                self._join(server, f"{self._bridge}v{number}")
        except NoNetworksError:
            self._remove()
            raise
        return self

    def _join(self, server: str, outer: str) -> None:
        name = self.namespace(server)
        with suppress(NoNetworksError):  # the kernel removes a deleted namespace's link a moment later
            run("ip", "link", "delete", outer)
        run("ip", "netns", "add", name)
        run("ip", "link", "add", outer, "type", "veth", "peer", "name", "eth0", "netns", name)
        run("ip", "link", "set", outer, "master", self._bridge, "up")
        run("ip", "-n", name, "link", "set", "lo", "up")
        run("ip", "-n", name, "address", "add", f"{self.address(server)}/24", "dev", "eth0")
        run("ip", "-n", name, "link", "set", "eth0", "up")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._remove()

    def _remove(self) -> None:
        for server in self._servers:
            with suppress(NoNetworksError):
                run("ip", "netns", "delete", self.namespace(server))
        with suppress(NoNetworksError):
            run("ip", "link", "delete", self._bridge)

    # --- faults ---------------------------------------------------------------------------------------------

    def pairs(self) -> list[str]:
        """Return the names of the links between two servers: "node-1 node-2"."""
        return [f"{a} {b}" for n, a in enumerate(self._servers) for b in self._servers[n + 1 :]]

    def cut(self, name: str) -> Undo:
        """Block all traffic between the two servers; both still reach the control plane."""
        one, other = name.split()
        ways = [(one, other), (other, one)]
        for here, there in ways:
            run("ip", "-n", self.namespace(here), "route", "add", "blackhole", f"{self.address(there)}/32")

        def join() -> None:
            for here, there in ways:
                run("ip", "-n", self.namespace(here), "route", "delete", "blackhole",
                    f"{self.address(there)}/32")  # fmt: skip

        return join

    def slow(self, name: str) -> Undo:
        """Slow down all that leaves the first of the two servers, whatever its destination."""
        namespace = self.namespace(name.split()[0])
        run("tc", "-n", namespace, "qdisc", "replace", "dev", "eth0", "root", "tbf", *SLOW)

        def fast() -> None:
            with suppress(NoNetworksError):  # two slow links of one server end one after the other
                run("tc", "-n", namespace, "qdisc", "delete", "dev", "eth0", "root")

        return fast
