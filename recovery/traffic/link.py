"""Transfer time: startup plus bytes over bandwidth, and the effect of sub-buffers on slow copies."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Link:
    """A sender's link to its peers. Raises ValueError for a rate that is not positive or a negative
    startup."""

    bytes_per_second: float
    startup_seconds: float = 0.0

    def __post_init__(self) -> None:
        if not self.bytes_per_second > 0.0 or not self.startup_seconds >= 0.0:
            raise ValueError("a link has a positive rate, and its startup is not negative")

    def seconds(self, size: float) -> float:
        """Return the seconds to send ``size`` bytes in one transfer."""
        return self.startup_seconds + size / self.bytes_per_second

    def bytes_in(self, seconds: float) -> int:
        """Return the whole bytes that one transfer carries within ``seconds``."""
        return max(0, int((seconds - self.startup_seconds) * self.bytes_per_second + 1e-6))


@dataclass(frozen=True, slots=True)
class SubBuffers:
    """Reserved memory of a receiver, cut into ``count`` sub-buffers.

    The defaults are the published ones. Raises ValueError for less than one sub-buffer, or sub-buffers of
    less than a byte.
    """

    reserved_bytes: int = 128_000_000
    count: int = 4

    def __post_init__(self) -> None:
        if self.count < 1 or self.chunk_bytes < 1:
            raise ValueError(f"{self.reserved_bytes} bytes do not make {self.count} sub-buffers")

    @property
    def chunk_bytes(self) -> int:
        """Size of the largest chunk."""
        return self.reserved_bytes // self.count


def received_through(link: Link, copy_bytes_per_second: float, buffers: SubBuffers) -> Link:
    """Return the effective link when the receiver copies each chunk to host memory.

    With one buffer, network and copy alternate. With more they overlap, and the slower one limits the rate.
    """
    if buffers.count == 1:
        rate = 1.0 / (1.0 / link.bytes_per_second + 1.0 / copy_bytes_per_second)
    else:
        rate = min(link.bytes_per_second, copy_bytes_per_second)
    return Link(rate, link.startup_seconds)
