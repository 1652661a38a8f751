"""The link profile of a placement: latency and bandwidth between its servers and within one."""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite


@dataclass(frozen=True, slots=True)
class LinkRate:
    """The cost of collective calls on a link.

    ``latency_seconds``: α, of each call regardless of size. ``bytes_per_second``: received by a participant.

    Raises ValueError for a negative latency or a rate that is not positive and finite.
    """

    latency_seconds: float
    bytes_per_second: float

    def __post_init__(self) -> None:
        if not (isfinite(self.latency_seconds) and self.latency_seconds >= 0.0):
            raise ValueError(f"latency_seconds is {self.latency_seconds}; it must be finite and not negative")
        if not (isfinite(self.bytes_per_second) and self.bytes_per_second > 0.0):
            raise ValueError(f"bytes_per_second is {self.bytes_per_second}; it must be finite and positive")

    def seconds(self, received_bytes: float) -> float:
        """Return the seconds of one call in which each participant receives ``received_bytes``."""
        return self.latency_seconds + received_bytes / self.bytes_per_second


@dataclass(frozen=True, slots=True)
class LinkProfile:
    """The links available to a job.

    Attributes:
        between: a server's network interface, shared by its GPUs. within: one GPU's link to the others of its
            server. share: of `between` that the job gets on its placement, above 0 and at most 1.

    Raises ValueError for another share.
    """

    between: LinkRate
    within: LinkRate
    share: float = 1.0

    def __post_init__(self) -> None:
        if not 0.0 < self.share <= 1.0:
            raise ValueError(f"share of a link is {self.share}; it must be above 0 and at most 1")

    @property
    def granted(self) -> LinkRate:
        """The job's link between servers: the latency, and its share of the bandwidth."""
        return LinkRate(self.between.latency_seconds, self.between.bytes_per_second * self.share)

    def rate(self, *, spread: bool) -> LinkRate:
        """Return the link of an exchange between servers (`spread`), or within a server."""
        return self.granted if spread else self.within
