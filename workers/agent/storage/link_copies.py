"""What the agent itself copies to the durable store and from it takes its server's emulated links too."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path

from workers.links.client import LinkClient
from workers.links.rates import NETWORK, NETWORK_IN, STATE, ServerLinks
from workers.links.server import LinkServer

#: Waits until so many bytes, moved since that time (monotonic clock), are through; returns when they were.
Carry = Callable[[int, float], float]


def at_once(_size: int, _begun: float) -> float:
    """Without emulated links nothing waits."""
    return time.monotonic()


class LinkCopies:
    """The agent as one more user of its server's links.

    ``served``: the links, and the folder in which they are served for the agent; None without any.
    """

    def __init__(self, server: LinkServer | None, links: ServerLinks | None, folder: Path) -> None:
        """`folder` gets the agent's own socket. Raises OSError."""
        self._client: LinkClient | None = None
        self.served: tuple[ServerLinks, Path] | None = None
        if server is not None and links is not None:
            folder.mkdir(exist_ok=True, mode=0o700)
            server.listen("agent", folder)
            self._client = LinkClient(links, folder)
            self.served = (links, folder)

    @property
    def sent(self) -> Carry:
        """To the durable store, which is elsewhere."""
        return self._carry((NETWORK,))

    @property
    def received(self) -> Carry:
        """From the durable store."""
        return self._carry((NETWORK_IN,))

    def close(self) -> None:
        """Let go of the links."""
        if self._client is not None:
            self._client.close()

    def _carry(self, path: tuple[str, ...]) -> Carry:
        client = self._client
        if client is None:
            return at_once
        return lambda size, begun: client.carry(path, STATE, size, begun)
