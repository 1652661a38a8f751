"""Recovery points in the memory of servers: what agents report of them, and what starts from them.

Stores hold a newer point after every iteration. No row is written for that: each agent's last report says
what its server holds, and the workers that start agree which point is the newest that is whole on all of
them.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Any

from cluster.models import Agent
from punctual.protocol.memory import Holding, StoreReport
from punctual.protocol.reports import RefusedItem, check
from scheduling.models import Job
from scheduling.selectors.memory_points import MemoryPoint
from scheduling.selectors.own_work import OwnWork


def take_store_report(agent: Agent, value: Any, now: datetime) -> list[RefusedItem]:
    """Note what a server's store holds of work that was given to it; returns what is refused."""
    report, problem = check(StoreReport, value)
    if report is None:
        return [RefusedItem("memory_store", 0, problem)]
    refused = []
    kept = []
    found = [(place, *check(Holding, entry)) for place, entry in enumerate(report["holdings"])]
    own = OwnWork(agent.server_id, (entry["job"] for _, entry, _ in found if entry is not None))
    longest = dict(
        Job.objects.filter(pk__in={entry["job"] for _, entry, _ in found if entry is not None}).values_list(
            "pk", "max_iterations"
        )
    )
    for place, entry, reason in found:
        if entry is None:
            refused.append(RefusedItem("memory_store", place, reason))
            continue
        wrong = own.problem(entry)
        if wrong is None and entry["iteration"] > longest.get(entry["job"], 0):
            wrong = f"iteration: {entry['iteration']} of a job that has {longest.get(entry['job'], 0)}"
        if wrong is not None:
            refused.append(RefusedItem("memory_store", place, wrong, entry["job"]))
            continue
        completed_at = now - timedelta(seconds=entry.pop("age_seconds"))
        kept.append({**entry, "completed_at": completed_at.isoformat()})
    Agent.objects.filter(pk=agent.pk).update(memory_store={**report, "holdings": kept})
    return refused


def start_from_memory(point: MemoryPoint, servers: Sequence[int]) -> dict[str, Any] | None:
    """The order to take a state from memory; None where a shard's holder has no rank of the new generation.

    Args:
        servers: the server of each rank of the new generation. Each shard is read where it is.
    """
    readers: dict[int, list[int]] = defaultdict(list)
    for rank, server in enumerate(servers):
        readers[server].append(rank)
    if not set(point.holders) <= set(readers):
        return None
    shards = []
    given: dict[int, int] = defaultdict(int)
    for number, (server, size) in enumerate(zip(point.holders, point.bytes, strict=True)):
        reader = readers[server][given[server] % len(readers[server])]
        given[server] += 1
        holder = {"tier": "memory", "server": server}
        shards.append({"id": number, "reader": reader, "bytes": size, "holders": [holder]})
    return {
        "from": "memory",
        "generation": point.generation.number,
        "iteration": point.iteration,
        "world_size": point.generation.world_size,
        "runtime_plan": point.generation.runtime_plan.get("digest"),
        "shards": shards,
    }
