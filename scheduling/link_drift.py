"""How far a figure may move before plans are made anew."""

from __future__ import annotations

from communication.profiles.link import LinkRate

#: Of itself that a figure may move before plans are made anew (Cupcake 7).
MOST_DRIFT = 0.2
#: Seconds that make no difference to any plan.
NEGLIGIBLE_SECONDS = 1e-4


def link_moved(planned: LinkRate, known: LinkRate) -> bool:
    """Whether a link is so much slower or faster than plans were made for that they are made anew."""
    latencies = sorted((planned.latency_seconds, known.latency_seconds))
    slower, faster = sorted((planned.bytes_per_second, known.bytes_per_second))
    return slower < faster / (1.0 + MOST_DRIFT) or (
        latencies[1] > latencies[0] * (1.0 + MOST_DRIFT) + NEGLIGIBLE_SECONDS
    )
