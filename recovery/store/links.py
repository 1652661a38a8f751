"""The emulated links of a server, for its store's copies; a real server has none."""

from __future__ import annotations

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from emulated_links.client import LinkClient, wait_until
from emulated_links.rates import HOST_TO_DEVICE, NETWORK, NETWORK_IN, SPINE, STATE, ServerLinks

#: A piece takes about this long, so that changes of the rate take effect soon.
PIECE_SECONDS = 0.02
LEAST_PIECE_BYTES = 16 << 10
#: Piece size without a rate limit.
ANY_BYTES = 1 << 62


class Way:
    """The links that one copy uses; without links, nothing waits."""

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
        """Wait until the links have carried the `size` bytes moved since `began` (monotonic time)."""
        if self._client is not None:
            wait_until(self._client.transfer(self._path, STATE, size, began))

    def arrive(self) -> None:
        """Wait for the links' latency after the last byte was sent."""
        if self._client is not None:
            wait_until(time.monotonic() + self.latency_seconds)


class StoreLinks:
    """The server's links as last sent by the agent. The store's own thread replaces them; others read
    them."""

    def __init__(self, folder: Path) -> None:
        """Args: folder: where the link server listens for the store."""
        self._folder = folder
        self._told: Mapping[str, Any] | None = None
        self._client: LinkClient | None = None
        self.rack: str | None = None

    def obey(self, message: Mapping[str, Any] | None) -> None:
        """Use these links from now on: {"rates", "rack"}; None for no links.

        Raises KeyError and ValueError.
        """
        if message == self._told:
            return
        client = (
            None if message is None else LinkClient(ServerLinks.from_message(message["rates"]), self._folder)
        )
        self._client, self._told = client, message
        self.rack = None if message is None else str(message["rack"])

    def to(self, rack: str | None) -> Way:
        """Return the way to a server in that rack; None if its rack is unknown."""
        client = self._client
        if client is None:
            return Way()
        return Way(client, (NETWORK,) if rack in (None, self.rack) else (NETWORK, SPINE))

    def back(self) -> Way:
        """Return the way of data from other servers."""
        return Way() if self._client is None else Way(self._client, (NETWORK_IN,))

    def into_memory(self) -> Way:
        """Return the way from sub-buffers to host memory: data is received by the accelerator."""
        return Way() if self._client is None else Way(self._client, (HOST_TO_DEVICE,))
