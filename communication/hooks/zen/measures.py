"""Measurements of exchanges of sparse gradients: bytes, seconds, densities, and imbalance of parts."""

from __future__ import annotations

from collections import defaultdict

from communication.hooks.measures import CommunicationMeasures, StageSpan
from communication.hooks.zen.exchanges import Exchanged


class SparseMeasures:
    """Sums over some iterations; `forget` resets them.

    Attributes:
        iterations: number summed. codec_seconds: of a rank's own work: hashing, sorting, adding.
            exchange_seconds: waits for other ranks. received_bytes: from others, except those of its own
            server. dense_bytes: that all-reduces would have received. spans: of the last iteration.
    """

    def __init__(self, servers: int) -> None:
        self._servers = servers
        self.forget()

    def forget(self) -> None:
        """Reset all sums."""
        self.iterations = 0
        self.codec_seconds = self.exchange_seconds = 0.0
        self.received_bytes = self.dense_bytes = 0
        self.spans: list[StageSpan] = []
        self._pushed = [0] * self._servers
        self._owned = [0] * self._servers
        self._densities: dict[str, list[float]] = defaultdict(lambda: [0.0, 0])

    def iteration(self, codec_seconds: float, exchange_seconds: float, received_bytes: int) -> None:
        """Record an iteration in which all tensors were exchanged."""
        self.iterations += 1
        self.codec_seconds += codec_seconds
        self.exchange_seconds += exchange_seconds
        self.received_bytes += received_bytes

    def tensor(self, name: str, own: int, units: int, exchanged: Exchanged, unit_bytes: int) -> None:
        """Record an exchanged tensor. ``own``: non-zero units of this rank's gradient, of ``units``."""
        found = self._densities[name]
        found[0] += own / units if units else 0.0
        found[1] += 1
        for sums, counts in ((self._pushed, exchanged.pushed), (self._owned, exchanged.owned)):
            for server, count in enumerate(counts):
                sums[server] += unit_bytes * count

    def told(self) -> CommunicationMeasures:
        """Return all measures in the common form and reset them. A rank's own work counts as encoding."""
        found = CommunicationMeasures(
            {"encode": self.codec_seconds, "exchange": self.exchange_seconds, "decode": 0.0},
            self.received_bytes,
            self.dense_bytes,
            self.push_imbalance,
            self.pull_imbalance,
            densities=self.densities,
            spans=self.spans,
        )
        self.forget()
        return found

    @property
    def push_imbalance(self) -> float:
        """Bytes received by the fullest server over the mean."""
        return _imbalance(self._pushed)

    @property
    def pull_imbalance(self) -> float:
        """Bytes sent back by the fullest server over the mean."""
        return _imbalance(self._owned)

    @property
    def densities(self) -> dict[str, float]:
        """Mean share of non-zero units on this rank, by tensor."""
        return {name: total / count for name, (total, count) in self._densities.items()}


def _imbalance(by_server: list[int]) -> float:
    total = sum(by_server)
    return len(by_server) * max(by_server) / total if total else 1.0
