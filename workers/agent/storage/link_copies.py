"""The agent's own copies to and from the durable store, over its server's emulated links."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from emulated_links.client import LinkClient
from emulated_links.rates import NETWORK, NETWORK_IN, STATE, ServerLinks
from emulated_links.server import LinkServer

#: Waits until bytes moved since a time (monotonic clock) have passed; returns when they did.
Carry = Callable[[int, float], float]


def at_once(_size: int, _begun: float) -> float:
    """Return the current time: without emulated links nothing waits."""
    return time.monotonic()


class LinkCopies:
    """The agent as a user of its server's links.

    ``served``: the links, and the folder in which they are served for the agent; None without any.
    """

    def __init__(self, server: LinkServer | None, links: ServerLinks | None, folder: Path) -> None:
        """`folder` holds the agent's own socket. Raises OSError."""
        self._client: LinkClient | None = None
        self.served: tuple[ServerLinks, Path] | None = None
        if server is not None and links is not None:
            folder.mkdir(exist_ok=True, mode=0o700)
            server.listen("agent", folder)
            self._client = LinkClient(links, folder)
            self.served = (links, folder)

    @property
    def sent(self) -> Carry:
        """For copies to the durable store, over the network."""
        return self._carry((NETWORK,))

    @property
    def received(self) -> Carry:
        """For copies from the durable store."""
        return self._carry((NETWORK_IN,))

    def close(self) -> None:
        """Close the connections."""
        if self._client is not None:
            self._client.close()

    def _carry(self, path: tuple[str, ...]) -> Carry:
        client = self._client
        if client is None:
            return at_once
        return lambda size, begun: client.carry(path, STATE, size, begun)
