"""All links of one emulated server, and the transfers on them."""

from __future__ import annotations

from dataclasses import dataclass

from emulated_links.rates import LINKS, ServerLinks
from emulated_links.shared_link import SharedLink, Transfer
from emulated_links.wire import Request

#: Longest time by which a transfer's begin may precede its request, because its host was busy or moved the
#: bytes first. Traffic that a link has carried meanwhile is not revised.
LONGEST_DELAY_SECONDS = 5.0


@dataclass(eq=False)
class Pending:
    """A transfer in progress over the links of its path."""

    transfers: list[Transfer]

    @property
    def ended_at(self) -> float | None:
        """When the last of its links finished it; None before."""
        ends = [transfer.ended_at for transfer in self.transfers]
        return None if None in ends else max(end for end in ends if end is not None)


class Arbiter:
    """Computes when transfers end. It has no clock, like the links."""

    def __init__(self, links: ServerLinks) -> None:
        self.links = {name: SharedLink(links.rate(name).bytes_per_second, links.shares) for name in LINKS}

    def begin(self, request: Request, now: float) -> Pending:
        """Start a request on its links, in their past if it began before now."""
        started = min(max(request.started, now - LONGEST_DELAY_SECONDS), now)
        transfers = []
        for name in request.path:
            link = self.links[name]
            link.advance(now)
            transfers.append(link.add(request.traffic, request.size, started))
        return Pending(transfers)

    def advance(self, to: float) -> None:
        """Advance all links to the time `to`."""
        for link in self.links.values():
            link.advance(to)

    def next_end(self) -> float | None:
        """Return when the next transfer ends; None if the links are idle."""
        ends = [end for end in (link.next_end() for link in self.links.values()) if end is not None]
        return min(ends, default=None)

    def carried(self) -> dict[str, dict[str, float]]:
        """Return the bytes carried so far, by link and traffic class."""
        return {name: dict(link.carried) for name, link in self.links.items()}
