"""On which servers the recovery points in memory of a new generation are kept.

The choice is `recovery.placement`'s: this room tells it which servers there are, what their stores may take,
and what others have been granted there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.choices import ServerState
from cluster.models import Server
from recovery.placement.domains import FailureDomains
from recovery.placement.memory import SLOTS, Machine, protect
from scheduling.choices import GenerationState, Purpose
from scheduling.models import Generation
from scheduling.selectors.memory_points import PointsInMemory

#: Copies of each shard, its own server's among them, where a job does not say.
REPLICAS = 2


@dataclass(frozen=True)
class _Store:
    name: str
    rack: str
    limit_bytes: int
    #: Whether others may rely on it: it is the cluster's own, and nobody empties it. A standby server's
    #: memory is free, and what it has it need not fetch once it takes a lost server's place.
    stays: bool


class Stores:
    """The in-memory stores of a cluster, and what is granted there. Grants of one batch see each other."""

    def __init__(self, cluster_ids: Iterable[int]) -> None:
        servers = Server.objects.filter(
            cluster__in=set(cluster_ids), state=ServerState.UP, memory_store_bytes__gt=0
        )
        self._stores = {
            server.pk: _Store(
                server.name,
                server.rack,
                server.memory_store_bytes,
                (server.usable() or server.ready_to_stand_in())
                and server.inference_cluster_id is None
                and server.available_until is None,
            )
            for server in servers
            if server.store_port is not None
        }
        self._granted: Counter[int] = Counter()
        self._granted_to: Counter[tuple[str, int]] = Counter()
        self._kept: Counter[int] = Counter()
        if self._stores:
            unretired = Generation.objects.filter(purpose=Purpose.TRAINING).exclude(
                state=GenerationState.RETIRED
            )
            for job_id, protection in unretired.values_list("job_id", "protection"):
                self._note(job_id, protection)

    def _note(self, job_id: str, protection: Mapping[str, Any]) -> None:
        for server, size in protection.get("memory_bytes", ()):
            self._granted[server] += size
            self._granted_to[job_id, server] += size
            self._kept[server] += 1

    def grant(self, job_id: str, servers: Sequence[int], state_bytes: int) -> dict[str, Any]:
        """Where the shards of ranks on these servers are to be kept; empty where their servers keep none.

        Args:
            servers: of each rank. state_bytes: of the whole state; 0 while nobody knows.

        A server that has nothing to do with the job keeps a copy where all of its ranks are on one server.
        """
        ranks = Counter(servers)
        if not ranks or not ranks.keys() <= self._stores.keys():
            return {}
        each = -(-state_bytes // len(servers))
        machines = [self._machine(job_id, server, count * each) for server, count in ranks.items()]
        places = list(ranks)
        if len(machines) < REPLICAS:
            extra = self._another(job_id, places[0], machines[0].shard_bytes)
            if extra is not None:
                places.append(extra)
                machines.append(self._machine(job_id, extra, 0))
        found = protect(machines, REPLICAS)
        placement = found.placement
        holders = {
            server: [server] if placement is None else [places[at] for at in placement.holders[number]]
            for number, server in enumerate(places)
        }
        protection = {
            "wanted": found.wanted,
            "replicas": found.replicas,
            "reason": found.reason,
            "fatal_domains": list(found.fatal_domains),
            "holders": [holders[server] for server in servers],
            "memory_bytes": [list(pair) for pair in zip(places, found.memory_bytes, strict=True)],
        }
        self._note(job_id, protection)
        return protection

    def servers_with_room(self, state_bytes: int) -> int:
        """How many servers have room for the state of one more job, were it on one of them alone."""
        return sum(
            store.stays and store.limit_bytes - self._granted[server] >= SLOTS * state_bytes
            for server, store in self._stores.items()
        )

    def _machine(self, job_id: str, server: int, shard_bytes: int) -> Machine:
        store = self._stores[server]
        return Machine(store.name, self._free(job_id, server), shard_bytes, FailureDomains(rack=store.rack))

    def _free(self, job_id: str, server: int) -> int:
        """What no other job was granted. Of the same job's earlier generation less and less is kept."""
        others = self._granted[server] - self._granted_to[job_id, server]
        return max(0, self._stores[server].limit_bytes - others)

    def _another(self, job_id: str, server: int, shard_bytes: int) -> int | None:
        """The server that is to keep copies for a job on one server: with room for them, in another rack if
        there is one, with the fewest others to keep."""
        rack = self._stores[server].rack
        able = [
            other
            for other, store in self._stores.items()
            if other != server and store.stays and self._free(job_id, other) >= SLOTS * shard_bytes
        ]
        return min(
            able,
            key=lambda other: (
                bool(rack) and self._stores[other].rack == rack, self._kept[other],
                -self._free(job_id, other), other,
            ),
            default=None,
        )  # fmt: skip


def replace_lost_copies(server_id: int) -> list[Generation]:
    """A server is given up: jobs that train on without it, and had a copy there, get one elsewhere where
    there is room. Returns their generations, for their servers to be told."""
    kept = Generation.objects.filter(
        purpose=Purpose.TRAINING, protection__holders__contains=[[server_id]]
    ).exclude(state=GenerationState.RETIRED)
    generations = list(kept.select_related("job__checkpoint", "job__curve").order_by("pk"))
    if not generations:
        return []
    jobs = [generation.job for generation in generations]
    stores, in_memory = Stores(job.cluster_id for job in jobs), PointsInMemory(jobs)
    for generation in generations:
        members = generation.assignments.filter(rank__lt=generation.world_size).order_by("rank")
        servers = list(members.values_list("gpu__server_id", flat=True))
        generation.protection = stores.grant(
            generation.job_id, servers, in_memory.state_bytes(generation.job)
        )
        generation.save(update_fields=["protection"])
    return generations
