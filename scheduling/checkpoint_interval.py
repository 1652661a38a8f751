"""How far apart a job's durable states are: the work that a failure can lose. Pure."""

from __future__ import annotations

#: Where servers are reserved for failures, states are no farther apart than this: promises keep slack for the
#: work that is lost.
RESERVE_CHECKPOINT_SECONDS = 60.0


def checkpoint_interval_seconds(asked_seconds: float, reserve_servers: int) -> float:
    """What a job's workers are told: what its owner asked for, and under a reserve no more than that rests
    on."""
    return min(asked_seconds, RESERVE_CHECKPOINT_SECONDS) if reserve_servers else asked_seconds
