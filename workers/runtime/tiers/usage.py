"""Usage of the tiers of experts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import astuple, dataclass


@dataclass(frozen=True, slots=True)
class TierUsage:
    """Totals of one worker, or of several.

    Attributes:
        accesses, hits: accesses to states, and those found in host memory.
        stall_seconds: time that computation waited for states.
        bytes_read, bytes_written: file traffic.
    """

    accesses: float = 0.0
    hits: float = 0.0
    stall_seconds: float = 0.0
    bytes_read: float = 0.0
    bytes_written: float = 0.0

    def plus(self, other: TierUsage) -> TierUsage:
        """Return the sum."""
        return TierUsage(*map(sum, zip(astuple(self), astuple(other), strict=True)))

    def since(self, earlier: TierUsage) -> TierUsage:
        """Return the difference to earlier totals; the totals themselves if counting began again."""
        if earlier.accesses > self.accesses:
            return self
        return TierUsage(*(now - then for now, then in zip(astuple(self), astuple(earlier), strict=True)))

    def values(self) -> list[float]:
        """Return the totals in the order of `from_values`."""
        return list(astuple(self))

    @classmethod
    def from_values(cls, values: Sequence[float]) -> TierUsage:
        """Return the totals of `values`, which may be sums over workers."""
        return cls(*values)

    def metrics(self, workers: int) -> dict[str, float]:
        """Return the metrics of an iteration of all workers together."""
        return {
            "moe/tier_bytes_read": self.bytes_read,
            "moe/tier_bytes_written": self.bytes_written,
            "moe/tier_hits": self.hits / self.accesses if self.accesses else 1.0,
            "moe/tier_stall_seconds": self.stall_seconds / workers,
        }
