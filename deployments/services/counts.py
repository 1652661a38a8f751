"""The counts that replicas report, checked before they are stored."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime, timedelta
from typing import Any

from deployments.models import Replica
from punctual.protocol.serving import ServingCounts

COUNTS = tuple(name for name in ServingCounts.model_fields if name not in ("experts", "ring"))


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
    changed = ["counts", "counts_at"]
    if entry["ring"] is not None:
        if replica.group:
            return "a member of a group of servers has no ring"
        replica.ring = entry["ring"]
        changed.append("ring")
    if entry["experts"] is not None:
        problem = _find_problem(replica, entry["experts"])
        if problem is not None:
            return problem
        replica.experts = entry["experts"]
        changed.append("experts")
    replica.save(update_fields=changed)
    return None


def _amount(value: Any) -> float:
    if isinstance(value, list):
        return sum(value)
    return float(value or 0)


def _find_problem(replica: Replica, experts: Mapping[str, Any]) -> str | None:
    """Return why a report of experts is refused; None if it is not."""
    if not replica.group or replica.rank:
        return "experts are reported by rank 0 of a group of servers"
    ranks = {rank for layer in experts["layers"] for hosts in layer["hosts"] for rank in hosts}
    if max(ranks, default=0) >= replica.rollout.group_servers:
        return f"hosts: rank {max(ranks)} of a group of {replica.rollout.group_servers} servers"
    return None
