"""The request load of an inference cluster, and the servers needed to serve it (Lyra section 3.2.1)."""

from __future__ import annotations

from dataclasses import dataclass
from math import ceil
from textwrap import shorten

from lending.core.lending_rule import ROUNDING_GUARD
from simulation.inference.usage import UsageSeries

MOST_SOURCE_CHARACTERS = 200
"""The platform's limit for a source."""
REQUESTS_PER_SERVER = 1000.0
"""Requests a second that one server serves in time: an arbitrary unit of the load."""


@dataclass(frozen=True, slots=True)
class RequestLoad:
    """Requests over time for a cluster of ``servers``, by a usage curve.

    ``speed_up`` seconds of the curve pass in one second, beginning ``start_seconds`` after its midnight.
    """

    #: Usage over time, 0 to 1.
    series: UsageSeries
    servers: int
    speed_up: float = 1.0
    start_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.speed_up > 0.0:
            raise ValueError(f"time cannot pass {self.speed_up:g} times as fast")

    def usage(self, seconds: float) -> float:
        """Return the share of the cluster's GPUs that the requests take, ``seconds`` after the beginning."""
        return self.series.at(self.series.start_seconds + self.start_seconds + seconds * self.speed_up)

    def source(self) -> str:
        """Return the origin of this load's figures, for display: that it is emulated, and by which curve."""
        faster = f", {self.speed_up:g} times as fast" if self.speed_up != 1.0 else ""
        return shorten(f"emulated: {self.series.source}{faster}", MOST_SOURCE_CHARACTERS, placeholder=" …")

    def requests_per_second(self, seconds: float) -> float:
        """Return the request rate ``seconds`` after the beginning."""
        return self.usage(seconds) * self.servers * REQUESTS_PER_SERVER


@dataclass(frozen=True, slots=True)
class Serving:
    """How the requests of one moment were served by the servers at home."""

    requests_per_second: float
    #: Servers that the requests need.
    needed_servers: int
    #: Those that were not at home.
    missing_servers: int


def serve(requests_per_second: float, servers_at_home: int) -> Serving:
    """Pack requests onto as few servers as possible."""
    needed = max(0, ceil(requests_per_second / REQUESTS_PER_SERVER - ROUNDING_GUARD))
    return Serving(requests_per_second, needed, max(0, needed - servers_at_home))
