"""The counts that replicas report, checked before they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from deployments.models import Replica
from punctual.protocol.serving import ServingCounts

COUNTS = tuple(ServingCounts.model_fields)


def store_counts(replica: Replica, entry: Mapping[str, Any], now: datetime) -> str | None:
    """Store a replica's newest counts; return why they are refused, or None. An older report changes nothing.

    The caller has checked that the entry is about this replica.
    """
    counts = {name: entry[name] for name in COUNTS}
    if sum(counts["latencies"]) > counts["requests"]:
        return "more latencies than requests"
    if any(_amount(counts[name]) < _amount(replica.counts.get(name)) for name in COUNTS if name != "waiting"):
        return None
    replica.counts, replica.counts_at = counts, now - timedelta(seconds=entry["age_seconds"])
    replica.save(update_fields=["counts", "counts_at"])
    return None


def _amount(value: Any) -> float:
    if isinstance(value, list):
        return sum(value)
    return float(value or 0)
