"""Chooses the servers that keep a new generation's recovery points in memory.

`recovery.placement` makes the choice. This module supplies the servers, the capacity of their stores, and
what other jobs were granted there.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.choices import ServerState
from cluster.models import Cluster, Server
from recovery.placement.domains import FailureDomains
from recovery.placement.memory import SLOTS, Machine, protect
from recovery.probability.replicas import MOST_REPLICAS, FailureRates, choose_replicas
from scheduling.choices import GenerationState, Purpose
from scheduling.models import Generation, Job
from scheduling.selectors.recovery.memory_points import PointsInMemory

#: Default number of copies of each shard, including the local one, without an operator's target. A promise
#: that counts on copies has at least this number.
REPLICAS = 2


@dataclass(frozen=True)
class _Store:
    name: str
    cluster: Cluster
    domains: FailureDomains
    limit_bytes: int
    #: Whether other servers may rely on it: it belongs to the cluster and is not being emptied. A standby
    #: server has free memory, and what it holds need not be fetched once it replaces a lost server.
    stays: bool


class Stores:
    """In-memory stores of clusters and the memory granted there. Grants of one batch see each other."""

    def __init__(self, cluster_ids: Iterable[int]) -> None:
        servers = Server.objects.select_related("cluster").filter(
            cluster__in=set(cluster_ids), state=ServerState.UP, memory_store_bytes__gt=0
        )
        self._stores = {
            server.pk: _Store(
                server.name,
                server.cluster,
                FailureDomains(server.rack, server.power_domain),
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

    def grant(
        self,
        job_id: str,
        servers: Sequence[int],
        state_bytes: int,
        promised: int = 1,
        asked: int | None = None,
    ) -> dict[str, Any]:
        """Return where the shards of ranks on these servers are kept; empty if a server has no store.

        Args:
            servers: the server of each rank. state_bytes: size of the whole state; 0 if unknown. promised:
                copies that the job's promise counts on. asked: copies that its owner asks for, if any.

        If the ranks are on fewer servers than there are to be copies, other servers keep copies.
        """
        ranks = Counter(servers)
        if not ranks or not ranks.keys() <= self._stores.keys():
            return {}
        each = -(-state_bytes // len(servers))
        machines = [self._machine(job_id, server, count * each) for server, count in ranks.items()]
        places = list(ranks)
        wanted, helpers, missed = self._wanted(job_id, places, machines, promised, asked)
        places += helpers
        machines += [self._machine(job_id, helper, 0) for helper in helpers]
        found = protect(machines, wanted)
        placement = found.placement
        holders = {
            server: [server] if placement is None else [places[at] for at in placement.holders[number]]
            for number, server in enumerate(places)
        }
        protection = {
            "wanted": found.wanted,
            "replicas": found.replicas,
            "reason": found.reason or missed,
            "fatal_domains": list(found.fatal_domains),
            "holders": [holders[server] for server in servers],
            "memory_bytes": [list(pair) for pair in zip(places, found.memory_bytes, strict=True)],
        }
        self._note(job_id, protection)
        return protection

    def servers_with_room(self, state_bytes: int) -> int:
        """Return how many servers have room for the whole state of one more job."""
        return sum(
            store.stays and store.limit_bytes - self._granted[server] >= SLOTS * state_bytes
            for server, store in self._stores.items()
        )

    def _wanted(
        self,
        job_id: str,
        places: Sequence[int],
        machines: Sequence[Machine],
        promised: int,
        asked: int | None,
    ) -> tuple[int, list[int], str]:
        """Return the number of copies, the other servers that keep some, and why an operator's target is
        missed.
        """
        cluster = self._stores[places[0]].cluster
        if asked is not None:
            wanted = max(asked, promised)
            return wanted, self._helpers(job_id, places, machines, wanted), ""
        target = cluster.accepted_fallbacks_a_month
        aimed = 0.0 < target < 1.0
        helpers = self._helpers(job_id, places, machines, MOST_REPLICAS if aimed else REPLICAS)
        if not aimed:
            return REPLICAS, helpers, ""
        choice = choose_replicas(
            machines, failure_rates(cluster), target,
            helpers=[self._machine(job_id, helper, 0) for helper in helpers],
        )  # fmt: skip
        wanted = max(choice.replicas, promised)
        return wanted, helpers[: max(0, wanted - len(places))], choice.reason

    def _helpers(
        self, job_id: str, places: Sequence[int], machines: Sequence[Machine], most: int
    ) -> list[int]:
        """Return servers other than the job's own, so that there are up to ``most`` in all."""
        largest = max(machine.shard_bytes for machine in machines)
        found: list[int] = []
        while len(places) + len(found) < most:
            other = self._another(job_id, [*places, *found], largest)
            if other is None:
                break
            found.append(other)
        return found

    def _machine(self, job_id: str, server: int, shard_bytes: int) -> Machine:
        store = self._stores[server]
        return Machine(store.name, self._free(job_id, server), shard_bytes, store.domains)

    def _free(self, job_id: str, server: int) -> int:
        """Return the bytes granted to no other job. The same job's earlier generation keeps less and less."""
        others = self._granted[server] - self._granted_to[job_id, server]
        return max(0, self._stores[server].limit_bytes - others)

    def _another(self, job_id: str, places: Sequence[int], shard_bytes: int) -> int | None:
        """Return another server to keep copies of these servers' shards: with enough room, if possible in
        other racks and power domains, and with the fewest grants.
        """
        taken = {domain for server in places for domain in self._stores[server].domains.named()}
        able = [
            other
            for other, store in self._stores.items()
            if other not in places and store.stays and self._free(job_id, other) >= SLOTS * shard_bytes
        ]
        return min(
            able,
            key=lambda other: (
                sum(domain in taken for domain in self._stores[other].domains.named()), self._kept[other],
                -self._free(job_id, other), other,
            ),
            default=None,
        )  # fmt: skip


def failure_rates(cluster: Cluster) -> FailureRates:
    """Return the failure rates that an operator has set. A loss is repaired at the latest once another server
    is there.
    """
    return FailureRates(
        machine_a_day=cluster.failures_per_server_day,
        rack_a_day=cluster.failures_per_rack_day,
        power_a_day=cluster.failures_per_power_domain_day,
        recovery_seconds=(cluster.fence_seconds + cluster.fence_margin_seconds + cluster.replacement_seconds),
    )


def promised_replicas(job: Job) -> int:
    """Return the copies of its state that a job's promise counts on, including the local one."""
    return int(job.protection_class.get("replicas", 1)) if job.protection_class else 1


def replace_lost_copies(server_id: int) -> list[Generation]:
    """Place copies elsewhere, where there is room, for jobs that train on and had a copy on a fenced server.
    Return their generations, so that the caller can notify their servers.
    """
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
            generation.job_id,
            servers,
            in_memory.state_bytes(generation.job),
            promised_replicas(generation.job),
            generation.job.asked_protection.get("replicas"),
        )
        generation.save(update_fields=["protection"])
    return generations
