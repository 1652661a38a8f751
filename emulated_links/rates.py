"""The links of an emulated server: their rates, the classes that share them, and the path of a transfer."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

#: In display order, which is also the numbering on the wire.
WITHIN_SERVER = "within_server"
NETWORK = "network"
NETWORK_IN = "network_in"
SPINE = "spine"
HOST_TO_DEVICE = "host_to_device"
DISK = "disk"
LINKS = (WITHIN_SERVER, NETWORK, NETWORK_IN, SPINE, HOST_TO_DEVICE, DISK)
#: Links with a declared rate. Incoming traffic has the network's outgoing rate: it is full duplex.
DECLARED_LINKS = (WITHIN_SERVER, NETWORK, SPINE, HOST_TO_DEVICE, DISK)

#: Traffic classes: gradients (all-reduce or gather), experts' tokens (all-to-all), and state (checkpoints,
#: hand-overs, parameter broadcasts).
GRADIENTS = "gradients"
EXPERTS = "experts"
STATE = "state"
TRAFFIC = (GRADIENTS, EXPERTS, STATE)
#: The share of a link that a class gets while other classes use it too.
EQUAL_SHARES = dict.fromkeys(TRAFFIC, 0.5)

#: Rates of a server without declared links. Slow enough that one machine can really carry the traffic of
#: eight slow accelerators.
DEFAULT_LINKS: dict[str, Any] = {
    WITHIN_SERVER: {"bytes_per_second": 4e9, "latency_seconds": 0.001},
    NETWORK: {"bytes_per_second": 1e9, "latency_seconds": 0.001},
    SPINE: {"bytes_per_second": 0.5e9, "latency_seconds": 0.0005},
    HOST_TO_DEVICE: {"bytes_per_second": 4e9},
    DISK: {"bytes_per_second": 0.5e9},
}

LARGEST_LATENCY_SECONDS = 10.0


@dataclass(frozen=True)
class LinkRate:
    """The capacity of one link.

    Attributes:
        bytes_per_second: for all its traffic. latency_seconds: added to each message.
    """

    bytes_per_second: float
    latency_seconds: float = 0.0


@dataclass(frozen=True)
class ServerLinks:
    """The links of one emulated server.

    Attributes:
        rates: by name, one for each of DECLARED_LINKS.
        shares: by traffic class, its part of a link's rate while another class uses the link as well. Shares
            on a link that sum to more than 1 are scaled down to 1; a smaller sum models interference (Lina's
            fit: 0.24 for the all-to-all, 0.055 for the all-reduce).
    """

    rates: Mapping[str, LinkRate]
    shares: Mapping[str, float] = field(default_factory=lambda: dict(EQUAL_SHARES))

    def rate(self, link: str) -> LinkRate:
        """Return the rate of one of LINKS."""
        return self.rates[NETWORK if link == NETWORK_IN else link]

    def latency_seconds(self, path: tuple[str, ...]) -> float:
        """Return the latency of a message over all links of `path`."""
        return sum(self.rate(link).latency_seconds for link in path)

    @classmethod
    def from_message(cls, message: Mapping[str, Any]) -> ServerLinks:
        """Parse a table of links: one table for each of DECLARED_LINKS, and optionally `shares`.

        Raises:
            ValueError: something is missing, unknown or not a positive number; the message names it.
        """
        table = dict(message)
        shares = table.pop("shares", {})
        unknown = sorted(set(table) - set(DECLARED_LINKS))
        if unknown:
            raise ValueError(f"{unknown[0]} is no link; known are {', '.join(DECLARED_LINKS)}")
        rates = {}
        for link in DECLARED_LINKS:
            if link not in table:
                raise ValueError(f"{link} is not set")
            rates[link] = _rate(link, table[link])
        return cls(rates, dict(EQUAL_SHARES) | _shares(shares))

    def to_message(self) -> dict[str, Any]:
        """Return the table that `from_message` reads."""
        table: dict[str, Any] = {
            link: {"bytes_per_second": rate.bytes_per_second, "latency_seconds": rate.latency_seconds}
            for link, rate in self.rates.items()
        }
        return {**table, "shares": dict(self.shares)}


def _rate(link: str, table: Any) -> LinkRate:
    if not isinstance(table, Mapping):
        raise ValueError(f"{link} must be a table with bytes_per_second and latency_seconds, not {table!r}")
    unknown = sorted(set(table) - {"bytes_per_second", "latency_seconds"})
    if unknown:
        raise ValueError(f"{link}.{unknown[0]} is no property of a link")
    if "bytes_per_second" not in table:
        raise ValueError(f"{link}.bytes_per_second is not set")
    bytes_per_second = _number(f"{link}.bytes_per_second", table["bytes_per_second"])
    if bytes_per_second <= 0:
        raise ValueError(f"{link}.bytes_per_second must be above 0, not {bytes_per_second:g}")
    latency_seconds = _number(f"{link}.latency_seconds", table.get("latency_seconds", 0.0))
    if not 0 <= latency_seconds <= LARGEST_LATENCY_SECONDS:
        raise ValueError(
            f"{link}.latency_seconds must lie within 0 and {LARGEST_LATENCY_SECONDS:g}, not "
            f"{latency_seconds:g}"
        )
    return LinkRate(bytes_per_second, latency_seconds)


def _shares(table: Any) -> dict[str, float]:
    if not isinstance(table, Mapping):
        raise ValueError(f"shares must be a table of classes of traffic, not {table!r}")
    unknown = sorted(set(table) - set(TRAFFIC))
    if unknown:
        raise ValueError(f"shares.{unknown[0]} is no class of traffic; known are {', '.join(TRAFFIC)}")
    shares = {traffic: _number(f"shares.{traffic}", share) for traffic, share in table.items()}
    for traffic, share in shares.items():
        if not 0 < share <= 1:
            raise ValueError(f"shares.{traffic} must be above 0 and at most 1, not {share:g}")
    return shares


def _number(name: str, value: Any) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
        raise ValueError(f"{name} must be a number, not {value!r}")
    return float(value)
