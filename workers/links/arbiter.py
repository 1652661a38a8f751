"""All links of one emulated server, and the transfers on them."""

from __future__ import annotations

from dataclasses import dataclass

from workers.links.rates import LINKS, ServerLinks
from workers.links.shared_link import SharedLink, Transfer
from workers.links.wire import Request

#: A transfer may have begun so long before it is asked for: its host machine was busy, or the bytes were
#: moved first. Of what a link has carried meanwhile nothing is taken back.
LONGEST_DELAY_SECONDS = 5.0


@dataclass(eq=False)
class Pending:
    """A request on its way over the links of its path."""

    transfers: list[Transfer]

    @property
    def ended_at(self) -> float | None:
        """When the last of its links was done with it; None before."""
        ends = [transfer.ended_at for transfer in self.transfers]
        return None if None in ends else max(end for end in ends if end is not None)


class Arbiter:
    """Says when transfers end. It knows no clock, like the links."""

    def __init__(self, links: ServerLinks) -> None:
        self.links = {name: SharedLink(links.rate(name).bytes_per_second, links.shares) for name in LINKS}

    def begin(self, request: Request, now: float) -> Pending:
        """Put a request on its links; what began before others were there does so in their past."""
        started = min(max(request.started, now - LONGEST_DELAY_SECONDS), now)
        transfers = []
        for name in request.path:
            link = self.links[name]
            link.advance(now)
            transfers.append(link.add(request.traffic, request.size, started))
        return Pending(transfers)

    def advance(self, to: float) -> None:
        """Let time go on until `to`."""
        for link in self.links.values():
            link.advance(to)

    def next_end(self) -> float | None:
        """When something ends next; None when nothing is on its way."""
        ends = [end for end in (link.next_end() for link in self.links.values()) if end is not None]
        return min(ends, default=None)

    def carried(self) -> dict[str, dict[str, float]]:
        """Bytes carried so far, by link and class of traffic."""
        return {name: dict(link.carried) for name, link in self.links.items()}
