"""The optimal interval between recovery points (Gemini)."""

from __future__ import annotations

from math import floor, sqrt


def points_every(extension_seconds: float, iteration_seconds: float, failures_per_second: float) -> int:
    """Return iterations between two recovery points: the better integer next to the optimum q*.

    ``extension_seconds``: time that a point adds to its iteration; with 0, every iteration has a point.
    Raises ValueError for negative figures, an iteration of no length, and a positive extension with a failure
    rate of 0.
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
    """Return the share of time lost with a point each ``every`` iterations: longer iterations plus expected
    lost work."""
    longer = extension_seconds / (every * iteration_seconds)
    return longer + failures_per_second * every * iteration_seconds / 2.0
