"""Servers of the ranks of a generation, and the rates of the links between them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from communication.profiles.link import LinkRate
from emulated_links.rates import NETWORK, SPINE, WITHIN_SERVER, ServerLinks
from moe.moesys.all_to_all import LinkRates
from workers.runtime.assignment import Assignment
from workers.runtime.emulation.places import Places

MEASURED, EMULATED, PUBLISHED = "measured", "emulated", "published"


@dataclass(frozen=True)
class Topology:
    """Servers of ranks, and link rates.

    Attributes:
        servers: number of each rank's server; empty if all are on one.
        rates: of the links between them.
        source: origin of the rates between servers: measured, declared of emulated links, or published.
    """

    servers: tuple[int, ...] = ()
    rates: LinkRates = field(default_factory=LinkRates)
    source: str = PUBLISHED

    @classmethod
    def of(cls, assignment: Assignment) -> Topology:
        """Return the topology of a generation."""
        links, places = assignment.device.links, assignment.places
        measured = assignment.runtime_plan.link
        source = MEASURED if measured is not None else EMULATED if links is not None else PUBLISHED
        if links is not None:
            rates = emulated_rates(links, places, measured)
        else:
            rates = LinkRates() if measured is None else measured_rates(measured, places)
        return cls(places.servers, rates, source)

    def grid(self, ranks: Sequence[int]) -> RankGrid | None:
        """Return the grid of some ranks; None unless they are numbered server by server, with the same number
        (at least two) on each of at least two servers."""
        if not self.servers:
            return None
        servers = [self.servers[rank] for rank in ranks]
        each = servers.count(servers[0])
        count = len(set(servers))
        in_order = servers == [server for server in dict.fromkeys(servers) for _ in range(each)]
        return RankGrid(count, each) if in_order and count > 1 and each > 1 else None


@dataclass(frozen=True)
class RankGrid:
    """The same number of ranks on each of several servers."""

    servers: int
    ranks_per_server: int

    @property
    def rows(self) -> list[list[int]]:
        """Ranks of each server."""
        g = self.ranks_per_server
        return [list(range(server * g, (server + 1) * g)) for server in range(self.servers)]

    @property
    def rails(self) -> list[list[int]]:
        """Ranks of each rail."""
        return [list(rail) for rail in zip(*self.rows, strict=True)]


def measured_rates(link: LinkRate, places: Places) -> LinkRates:
    """Return the rates of real devices on servers with this link between them.

    The GPUs of a server share the measured interface. Links within servers are not measured: their published
    rate is used.
    """
    between = link.bytes_per_second / _sharing(places)
    return LinkRates(leaf=between, spine=between, between_latency=link.latency_seconds)


def emulated_rates(links: ServerLinks, places: Places, measured: LinkRate | None = None) -> LinkRates:
    """Return the rates of emulated links.

    The GPUs of a server share its links, and all messages of a collective leave at once: there are no rails,
    and no message waits for another's latency.

    Args:
        measured: the measured link between the servers; None if it was not measured.
    """
    sharing = _sharing(places)
    network = links.rate(NETWORK).bytes_per_second
    if len(set(places.racks)) > 1:
        network = min(network, links.rate(SPINE).bytes_per_second)
    if measured is not None:
        network = measured.bytes_per_second
    within = links.rate(WITHIN_SERVER).bytes_per_second
    return LinkRates(within / sharing, network / sharing, network / sharing, 0.0, 0.0)


def _sharing(places: Places) -> int:
    """Return the most GPUs of a server."""
    return max(places.servers.count(server) for server in places.servers)
