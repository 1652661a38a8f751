"""Links for communication plans: measured or reported, else the library's defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cluster.models import Server
from communication.profiles.link import LinkProfile, LinkRate
from moe.lina.shared_link import Rates
from scheduling.selectors.network.network import DEFAULT_RATE, network_of

#: Default: PCIe within a server (Espresso 4.3, its slower platform).
DEFAULT_LINKS = LinkProfile(DEFAULT_RATE, LinkRate(150e-6, 2.5e9))


@dataclass(frozen=True)
class KnownLinks:
    """The links of servers with a kind of GPU. ``source``, ``emulated`` and ``since`` describe those
    between servers, as in `network.KnownRate`. Links within a server are reported or the default, never
    measured."""

    profile: LinkProfile
    source: str
    emulated: bool = False
    since: datetime | None = None


def known_links(gpu_kind: str) -> KnownLinks:
    """Return the slowest of these servers' links, which limits every exchange."""
    servers = list(Server.objects.known().filter(gpus__kind=gpu_kind).distinct())
    between = network_of(servers).slowest(server.pk for server in servers)
    within = _slowest([server.links["within_server"] for server in servers if server.links])
    profile = LinkProfile(between.rate, within or DEFAULT_LINKS.within)
    return KnownLinks(profile, between.source, between.emulated, between.since)


def known_rates(gpu_kind: str) -> Rates:
    """Return the shares of a link that rows of experts and gradients get when they overlap, on the server
    where they are least; half each if unknown."""
    servers = Server.objects.known().filter(gpus__kind=gpu_kind, links__isnull=False).distinct()
    found = [_rates((server.links or {}).get("shares", {})) for server in servers]
    return min(found, key=lambda rates: rates.all_to_all + rates.all_reduce, default=Rates())


def _rates(shares: Mapping[str, float]) -> Rates:
    """Return the shares; the links scale shares that sum to more than 1 down to 1 (docs/decisions/0020)."""
    rows, gradients = float(shares.get("experts", 0.5)), float(shares.get("gradients", 0.5))
    scale = max(1.0, rows + gradients)
    return Rates(rows / scale, gradients / scale)


def _slowest(rates: Sequence[Mapping[str, Any]]) -> LinkRate | None:
    if not rates:
        return None
    return LinkRate(
        max(float(rate["latency_seconds"]) for rate in rates),
        min(float(rate["bytes_per_second"]) for rate in rates),
    )
