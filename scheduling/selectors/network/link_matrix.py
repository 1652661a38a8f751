"""The links between all servers, as the servers page and `GET /cluster/links/` show them."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cluster.link_pairs import pairs_of
from cluster.models import Server, ServerLink
from scheduling.selectors.network.network import DEFAULT_RATE, KnownRate, network_of


@dataclass(frozen=True)
class MatrixLink:
    """The link between two servers by name. ``problem``: why the last measurement was discarded."""

    #: Name of a server.
    first: str
    #: Name of the other server.
    second: str
    known: KnownRate
    #: Whether a measurement runs.
    measuring: bool
    tried_at: datetime | None
    problem: str

    @property
    def latency_seconds(self) -> float:
        return self.known.rate.latency_seconds

    @property
    def bytes_per_second(self) -> float:
        return self.known.rate.bytes_per_second

    @property
    def source(self) -> str:
        return self.known.source

    @property
    def emulated(self) -> bool:
        return self.known.emulated

    @property
    def since(self) -> datetime | None:
        return self.known.since


@dataclass(frozen=True)
class LinkMatrix:
    """Servers by name, and the links between them that are or will be measured."""

    servers: tuple[str, ...]
    links: tuple[MatrixLink, ...]
    now: datetime

    @property
    def default(self) -> dict[str, Any]:
        """The rates assumed for an unmeasured link."""
        return {
            "latency_seconds": DEFAULT_RATE.latency_seconds,
            "bytes_per_second": DEFAULT_RATE.bytes_per_second,
        }


def link_matrix(now: datetime) -> LinkMatrix:
    """Return all servers by name and their links, only for pairs with a common kind of GPU."""
    servers = list(Server.objects.known().prefetch_related("gpus").order_by("name"))
    names = {server.pk: server.name for server in servers}
    kinds: dict[str, list[int]] = {}
    for server in servers:
        for kind in {gpu.kind for gpu in server.gpus.all()}:
            kinds.setdefault(kind, []).append(server.pk)
    network = network_of(servers)
    rows = {
        (link.first_id, link.second_id): link
        for link in ServerLink.objects.filter(first__in=names, second__in=names)
    }
    pairs = {pair for some in kinds.values() for pair in pairs_of(some)} | network.measured.keys()
    links = []
    for pair in sorted(pairs, key=lambda pair: (names[pair[0]], names[pair[1]])):
        row = rows.get(pair)
        links.append(
            MatrixLink(
                names[pair[0]],
                names[pair[1]],
                network.rate(*pair),
                row is not None and row.asked_at is not None,
                None if row is None else row.tried_at,
                "" if row is None else row.problem,
            )
        )
    return LinkMatrix(tuple(names.values()), tuple(links), now)
