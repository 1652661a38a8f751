"""The network between servers: measured, else reported for emulated links, else the library's defaults."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from statistics import median
from typing import Any

from cluster.link_pairs import Pair, pair_of, pairs_of
from cluster.models import Server, ServerLink
from communication.profiles.link import LinkRate

#: Source of a measured link.
MEASURED = "measured"
#: Default: 25 Gbps, a call takes 150 microseconds (Espresso 4.3, its slower platform).
DEFAULT_RATE = LinkRate(150e-6, 3.125e9)


@dataclass(frozen=True)
class KnownRate:
    """A link between servers. ``source``: `measured`, `emulated` (its rates were reported), or `default`.

    ``emulated``: whether the link is emulated. ``since``: when it was measured or reported; None for
    defaults.
    """

    rate: LinkRate
    source: str
    emulated: bool = False
    since: datetime | None = None


@dataclass(frozen=True)
class Network:
    """Known links between some servers."""

    servers: tuple[int, ...]
    #: Measured rates by pair of servers.
    measured: Mapping[Pair, KnownRate]
    #: Configured rates by server.
    told: Mapping[int, KnownRate]
    #: For each server with measured links their median, which is assumed for its unmeasured links.
    usual: Mapping[int, KnownRate] = field(default_factory=dict)

    def rate(self, one: int, other: int) -> KnownRate:
        """Return the link between two servers."""
        pair = pair_of(one, other)
        if pair in self.measured:
            return self.measured[pair]
        for known in (self.usual, self.told):
            if one in known and other in known:
                return slowest([known[one], known[other]])
        return KnownRate(DEFAULT_RATE, "default")

    def slowest(self, servers: Iterable[int]) -> KnownRate:
        """Return the slowest link among these servers, which limits every exchange between them."""
        among = sorted(set(servers))
        if len(among) < 2:
            known = [self.told[one] for one in among if one in self.told]
            return known[0] if known else KnownRate(DEFAULT_RATE, "default")
        return slowest([self.rate(*pair) for pair in pairs_of(among)])


def slowest(known: Iterable[KnownRate]) -> KnownRate:
    """Return the longest latency and the lowest rate; source and time are those of the lowest rate."""
    everything = list(known)
    worst = min(everything, key=lambda one: one.rate.bytes_per_second)
    latency = max(one.rate.latency_seconds for one in everything)
    return KnownRate(
        LinkRate(latency, worst.rate.bytes_per_second), worst.source, worst.emulated, worst.since
    )


def network_of(servers: Iterable[Server]) -> Network:
    """Return the known links between these servers."""
    known = {server.pk: server for server in servers}
    measured = {
        (link.first_id, link.second_id): KnownRate(
            LinkRate(link.latency_seconds or 0.0, link.bytes_per_second or 0.0),
            MEASURED,
            link.emulated,
            link.measured_at,
        )
        for link in ServerLink.objects.filter(first__in=known, second__in=known, measured_at__isnull=False)
    }
    told = {
        server.pk: KnownRate(_told(server.links), "emulated", emulated=True, since=server.created_at)
        for server in known.values()
        if server.links
    }
    return Network(tuple(sorted(known)), measured, told, _usual(measured))


def _told(links: Mapping[str, Any]) -> LinkRate:
    rate = links["network"]
    return LinkRate(float(rate["latency_seconds"]), float(rate["bytes_per_second"]))


def _usual(measured: Mapping[Pair, KnownRate]) -> dict[int, KnownRate]:
    mine: dict[int, list[KnownRate]] = defaultdict(list)
    for pair, known in measured.items():
        for server in pair:
            mine[server].append(known)
    return {
        server: KnownRate(
            LinkRate(
                median(one.rate.latency_seconds for one in some),
                median(one.rate.bytes_per_second for one in some),
            ),
            MEASURED,
            any(one.emulated for one in some),
            max((one.since for one in some if one.since is not None), default=None),
        )
        for server, some in mine.items()
    }
