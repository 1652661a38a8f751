"""How often a recovery point is worth what it costs (Gemini, specification 2.7)."""

from __future__ import annotations

from math import floor, sqrt


def points_every(extension_seconds: float, iteration_seconds: float, failures_per_second: float) -> int:
    """Iterations between two recovery points: q* of the specification, as the better of its two neighbours.

    ``extension_seconds``: by how much a point lengthens its iteration. With none, every iteration has one.
    Raises ValueError for figures that are negative, an iteration of no length, and where a job that never
    fails is to pay for points.
    """
    if extension_seconds < 0.0 or iteration_seconds <= 0.0 or failures_per_second < 0.0:
        raise ValueError("extension and failure rate must not be negative, and an iteration takes time")
    if extension_seconds == 0.0:
        return 1
    if failures_per_second == 0.0:
        raise ValueError("a job that never fails needs no recovery points: give a failure rate above 0")
    best = sqrt(2.0 * extension_seconds / failures_per_second) / iteration_seconds
    low = max(1, floor(best))

    def share(every: int) -> float:
        return share_of_time(every, extension_seconds, iteration_seconds, failures_per_second)

    return low if share(low) <= share(low + 1) else low + 1


def share_of_time(
    every: int, extension_seconds: float, iteration_seconds: float, failures_per_second: float
) -> float:
    """Share of time that a point each ``every`` iterations costs: longer iterations and expected lost
    work."""
    longer = extension_seconds / (every * iteration_seconds)
    return longer + failures_per_second * every * iteration_seconds / 2.0
