"""Recovery points in servers' memory: agents' reports about them, and orders to start from them.

Stores hold a newer point after every iteration, and no row is written for that. Each agent's last report says
what its server holds. Starting workers agree on the newest point that is complete across them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from cluster.models import Agent, Server
from punctual.protocol.memory import Holding
from punctual.protocol.reports import RefusedItem, check
from recovery.points.readers import choose_readers
from scheduling.models import Generation, Job
from scheduling.selectors.agents.own_work import OwnWork
from scheduling.selectors.recovery.memory_points import MemoryPoint, Place


def take_store_report(agent: Agent, report: Mapping[str, Any], now: datetime) -> list[RefusedItem]:
    """Store what a server's memory store holds of its own work. Return the refused items.

    Args:
        report: a `StoreReport` whose holdings are not checked yet.
    """
    refused = []
    kept = []
    found = [(place, *check(Holding, entry)) for place, entry in enumerate(report["holdings"])]
    jobs = {entry["job"] for _, entry, _ in found if entry is not None}
    own = OwnWork(agent.server_id, jobs)
    keeping: _Keeping | None = None
    longest = dict(Job.objects.filter(pk__in=jobs).values_list("pk", "max_iterations"))
    for place, entry, reason in found:
        if entry is None:
            refused.append(RefusedItem("memory_store", place, reason))
            continue
        wrong = own.problem(entry)
        if wrong is not None:
            keeping = keeping or _Keeping(agent.server_id, jobs)
            wrong = None if keeping.knows(entry) else wrong
        if wrong is None and entry["iteration"] > longest.get(entry["job"], 0):
            wrong = f"iteration: {entry['iteration']} of a job that has {longest.get(entry['job'], 0)}"
        if wrong is not None:
            refused.append(RefusedItem("memory_store", place, wrong, entry["job"]))
            continue
        completed_at = now - timedelta(seconds=entry.pop("age_seconds"))
        kept.append({**entry, "completed_at": completed_at.isoformat()})
    Agent.objects.filter(pk=agent.pk).update(memory_store={**report, "holdings": kept})
    return refused


def start_from_memory(point: MemoryPoint, servers: Sequence[int]) -> dict[str, Any]:
    """Return the order to take a state from memory.

    Args:
        servers: the server of each rank of the new generation. A shard is read by a rank on a server that
            holds it, if any, else by a rank that reads little so far, whose server fetches it.
    """
    racks = dict(Server.objects.filter(pk__in=servers).values_list("pk", "rack"))
    shards = range(len(point.holders))
    readers = choose_readers([_servers(places) for places in point.holders], servers)

    def from_near_to_far(number: int) -> list[Place]:
        home = servers[readers[number]]
        rack = racks.get(home, "")
        return sorted(
            point.holders[number],
            key=lambda place: (place.server != home, not rack or place.rack != rack),
        )

    return {
        "from": "memory",
        "generation": point.generation.number,
        "iteration": point.iteration,
        "world_size": point.generation.world_size,
        "runtime_plan": point.generation.runtime_plan.get("digest"),
        "shards": [
            {
                "id": number,
                "reader": readers[number],
                "bytes": point.bytes[number],
                "holders": [
                    {
                        "tier": "memory",
                        "server": place.server,
                        "address": place.address,
                        "port": place.port,
                    }
                    for place in from_near_to_far(number)
                ],
            }
            for number in shards
        ],
    }


def _servers(places: Iterable[Place]) -> set[int]:
    return {place.server for place in places}


class _Keeping:
    """Shards that a server may hold besides those of its own workers: copies that it was granted, and all
    shards of a generation whose state its workers were ordered to load.
    """

    def __init__(self, server_id: int, jobs: Iterable[str]) -> None:
        self._server_id = server_id
        jobs = set(jobs)
        self._holders: dict[tuple[str, int], list[list[int]]] = {
            (job, number): protection["holders"]
            for job, number, protection in Generation.objects.filter(
                job__in=jobs, protection__holders__contains=[[server_id]]
            ).values_list("job_id", "number", "protection")
        }
        taken = Generation.objects.filter(
            job__in=jobs, start__from="memory", assignments__gpu__server_id=server_id
        )
        self._taken = set(taken.values_list("job_id", "start__generation"))

    def knows(self, entry: Mapping[str, Any]) -> bool:
        """Return whether the server may hold the reported shard."""
        key = (entry["job"], entry["generation"])
        holders = self._holders.get(key, [])
        rank = entry["rank"]
        return key in self._taken or (rank < len(holders) and self._server_id in holders[rank])
