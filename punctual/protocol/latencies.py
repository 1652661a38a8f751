"""Histograms of latencies, which can be summed over servers and times, with percentiles of the sum.

Serving workers import this module: it needs only the standard library.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Sequence

SHORTEST_LATENCY_SECONDS = 1e-4
LATENCY_GROWTH = 1.15
LATENCY_BUCKETS = 96
#: Upper bounds of all buckets except the last, in seconds: from 0.1 ms to 51 s, each 15 % above the previous.
LATENCY_BOUNDS: tuple[float, ...] = tuple(
    SHORTEST_LATENCY_SECONDS * LATENCY_GROWTH**number for number in range(LATENCY_BUCKETS - 1)
)


def latency_bucket(seconds: float) -> int:
    """Return the index of the bucket that counts a latency."""
    return bisect_left(LATENCY_BOUNDS, seconds)


def latency_percentile(counts: Sequence[int], share: float) -> float | None:
    """Return the latency in seconds below which ``share`` of the requests lie, or None without requests.

    Requests are assumed to lie evenly within a bucket, so the error is at most the width of one (15 %). For
    the last bucket its lower bound is returned.

    Raises ValueError for a share outside 0 to 1, and for more counts than there are buckets.
    """
    if not 0.0 <= share <= 1.0:
        raise ValueError(f"share is {share}; it must be from 0 to 1")
    if len(counts) > LATENCY_BUCKETS:
        raise ValueError(f"{len(counts)} counts; there are {LATENCY_BUCKETS} buckets of latencies")
    rank = share * sum(counts)
    before = 0
    for bucket, count in enumerate(counts):
        if count and before + count >= rank:
            lower = LATENCY_BOUNDS[bucket - 1] if bucket else 0.0
            if bucket == len(LATENCY_BOUNDS):
                return lower
            return lower + (LATENCY_BOUNDS[bucket] - lower) * max(0.0, rank - before) / count
        before += count
    return None if before == 0 else LATENCY_BOUNDS[-1]
