"""Current traffic of an emulated server's links."""

from __future__ import annotations

import time

from emulated_links.server import LinkServer


class LinkLoad:
    """Rates since the last call."""

    def __init__(self, server: LinkServer) -> None:
        self._server = server
        self._carried = server.carried()
        self._asked = time.monotonic()

    def now(self) -> dict[str, dict[str, float]]:
        """Return bytes per second by link and traffic class, without idle links and classes."""
        carried, asked = self._server.carried(), time.monotonic()
        seconds = max(asked - self._asked, 1e-3)
        load: dict[str, dict[str, float]] = {}
        for link, classes in carried.items():
            for traffic, size in classes.items():
                if size > self._carried[link][traffic]:
                    rate = (size - self._carried[link][traffic]) / seconds
                    load.setdefault(link, {})[traffic] = round(rate, 1)
        self._carried, self._asked = carried, asked
        return load
