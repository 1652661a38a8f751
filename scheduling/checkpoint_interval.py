"""How far apart a job's recovery points are: the work that a failure can lose. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: Where servers are reserved for failures, durable states are no farther apart than this: promises keep slack
#: for the work that is lost.
RESERVE_CHECKPOINT_SECONDS = 60.0


def told_intervals(
    asked_seconds: float,
    protection_class: Mapping[str, Any],
    reserve_servers: int,
    asked_protection: Mapping[str, int],
) -> dict[str, float | None]:
    """What a job's workers are told: what its owner asked for, and no more than a promise of its class rests
    on, whatever is in reserve by now.

    ``protection_class``: as the job's row keeps it; empty where it has none.
    """
    most = [asked_seconds]
    if reserve_servers:
        most.append(RESERVE_CHECKPOINT_SECONDS)
    safe_seconds = None
    if protection_class:
        most.append(protection_class["durable_seconds"])
        safe_seconds = protection_class["safe_seconds"]
    return {
        "checkpoint_seconds": min(most),
        "safe_seconds": safe_seconds,
        "point_iterations": asked_protection.get("frequency"),
    }
