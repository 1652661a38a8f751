"""The cluster's slot in the form of `scheduling.core.clock`."""

from __future__ import annotations

from datetime import datetime, timedelta
from math import inf

from cluster.models import Cluster
from scheduling.core.clock import changes_allowed_from


def slot_and_wake(cluster: Cluster) -> tuple[float, float]:
    """Return when the slot ends and when the last plan is to be checked, in Unix seconds; -inf and inf if
    unset."""
    slot_ends_at = -inf if cluster.next_slot_at is None else cluster.next_slot_at.timestamp()
    wake_at = inf if cluster.next_wake_at is None else cluster.next_wake_at.timestamp()
    return slot_ends_at, wake_at


def frozen_until(cluster: Cluster, now: datetime) -> datetime:
    """Return until when allocations are fixed; a decision at ``now`` without reallocation plans from then
    on."""
    left = changes_allowed_from(*slot_and_wake(cluster)) - now.timestamp()
    return now + timedelta(seconds=max(0.0, left))
