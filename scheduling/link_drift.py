"""Limits of drift within which plans are not made again."""

from __future__ import annotations

from communication.profiles.link import LinkRate

#: Relative change of a figure above which plans are made again (Cupcake).
MOST_DRIFT = 0.2
#: Absolute change in seconds that affects no plan.
NEGLIGIBLE_SECONDS = 1e-4


def link_moved(planned: LinkRate, known: LinkRate) -> bool:
    """Return whether a link has become so much slower or faster that its plans are made again."""
    latencies = sorted((planned.latency_seconds, known.latency_seconds))
    slower, faster = sorted((planned.bytes_per_second, known.bytes_per_second))
    return slower < faster / (1.0 + MOST_DRIFT) or (
        latencies[1] > latencies[0] * (1.0 + MOST_DRIFT) + NEGLIGIBLE_SECONDS
    )
