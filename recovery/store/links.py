"""The emulated links of a server as its store's copies take them; on a real server there are none."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from workers.links.client import LinkClient, wait_until
from workers.links.rates import HOST_TO_DEVICE, NETWORK, NETWORK_IN, SPINE, STATE, ServerLinks

#: A link is asked for what it carries in this time, so that what may be sent now is known soon.
PIECE_SECONDS = 0.02
LEAST_PIECE_BYTES = 16 << 10
#: Where the way has no rate.
ANY_BYTES = 1 << 62


class Way:
    """Some links of the server, for one copy that goes over them; without any, nothing waits."""

    def __init__(self, client: LinkClient | None = None, path: tuple[str, ...] = ()) -> None:
        self._client = client
        self._path = path
        self.bytes_per_second: float | None = None
        self.latency_seconds = 0.0
        self.piece_bytes = ANY_BYTES
        if client is not None:
            self.bytes_per_second = min(client.links.rate(link).bytes_per_second for link in path)
            self.latency_seconds = client.links.latency_seconds(path)
            self.piece_bytes = max(LEAST_PIECE_BYTES, int(self.bytes_per_second * PIECE_SECONDS))

    def carry(self, size: int, began: float) -> None:
        """Wait until the links have carried what was moved since `began`, a time of the monotonic clock."""
        if self._client is not None:
            wait_until(self._client.transfer(self._path, STATE, size, began))

    def arrive(self) -> None:
        """The last of it is on its way: wait for as long as the links' latency."""
        if self._client is not None:
            wait_until(time.monotonic() + self.latency_seconds)


class StoreLinks:
    """What the agent said last of its server's links. The store's own thread changes it, others read it."""

    def __init__(self, folder: Path) -> None:
        """`folder` is where the links' server listens for the store."""
        self._folder = folder
        self._told: Mapping[str, Any] | None = None
        self._client: LinkClient | None = None
        self.rack: str | None = None

    def obey(self, told: Mapping[str, Any] | None) -> None:
        """Take these links from now on: {"rates", "rack"}; None: there are none.

        Raises KeyError and ValueError.
        """
        if told == self._told:
            return
        client = None if told is None else LinkClient(ServerLinks.from_message(told["rates"]), self._folder)
        self._client, self._told = client, told
        self.rack = None if told is None else str(told["rack"])

    def to(self, rack: str | None) -> Way:
        """The way to a server in that rack; None where it is not said."""
        client = self._client
        if client is None:
            return Way()
        return Way(client, (NETWORK,) if rack in (None, self.rack) else (NETWORK, SPINE))

    def back(self) -> Way:
        """The way of what comes from other servers."""
        return Way() if self._client is None else Way(self._client, (NETWORK_IN,))

    def into_memory(self) -> Way:
        """The way from sub-buffers to the host's memory: what comes is received by the accelerator."""
        return Way() if self._client is None else Way(self._client, (HOST_TO_DEVICE,))
