"""Links and codecs as plans are made with: what was measured or told, else the library's defaults."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from cluster.models import Server
from communication.library.codecs import LOSSY, gpu_codec
from communication.profiles.codec import CodecProfile
from communication.profiles.link import LinkProfile, LinkRate

#: Where nobody said anything: 25 Gbps between servers and PCIe within one, a call takes 150 microseconds
#: (Espresso 4.3, its slower platform).
DEFAULT_LINKS = LinkProfile(LinkRate(150e-6, 3.125e9), LinkRate(150e-6, 2.5e9))


@dataclass(frozen=True)
class KnownLinks:
    """The links of servers with a kind of GPU. ``source``: `default`, or `emulated` as their rates are told.
    ``since``: when that was told; None for defaults."""

    profile: LinkProfile
    source: str
    since: datetime | None = None


def known_links(gpu_kind: str) -> KnownLinks:
    """The slowest of these servers': it holds up all that exchange with it."""
    told = [
        (server.links, server.created_at)
        for server in Server.objects.known().filter(gpus__kind=gpu_kind, links__isnull=False).distinct()
        if server.links
    ]
    if not told:
        return KnownLinks(DEFAULT_LINKS, "default")
    between = _slowest([links["network"] for links, _ in told])
    within = _slowest([links["within_server"] for links, _ in told])
    return KnownLinks(LinkProfile(between, within), "emulated", max(since for _, since in told))


def _slowest(rates: Sequence[Mapping[str, Any]]) -> LinkRate:
    return LinkRate(
        max(float(rate["latency_seconds"]) for rate in rates),
        min(float(rate["bytes_per_second"]) for rate in rates),
    )


def known_codecs(measured: Sequence[CodecProfile]) -> tuple[CodecProfile, ...]:
    """Those that were measured on a worker's device, and the library's for the others."""
    names = {codec.name for codec in measured}
    return (*measured, *(gpu_codec(name) for name in LOSSY if name not in names))
