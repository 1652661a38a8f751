"""Intervals between a job's recovery points, which limit the work that a failure can lose. Pure."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

#: If servers are reserved for failures, durable states are at most this far apart: promises keep slack for
#: the lost work.
RESERVE_CHECKPOINT_SECONDS = 60.0


def told_intervals(
    asked_seconds: float,
    protection_class: Mapping[str, Any],
    reserve_servers: int,
    asked_protection: Mapping[str, int],
) -> dict[str, float | None]:
    """Return the intervals for a job's workers: those that its owner asked for, limited to those that a
    promise of its class assumes, whatever the present reserve is.

    ``protection_class``: as stored in the job's row; empty without one.
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
