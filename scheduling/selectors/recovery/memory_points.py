"""Recovery points in servers' memory, as agents report them."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta
from typing import Any

from django.db.models import Exists, OuterRef, QuerySet

from cluster.choices import ServerState
from cluster.models import Agent, Cluster
from projects.prepared import PreparedRows, PreparedValues
from scheduling.choices import GenerationState, JobState, Purpose, RetireReason
from scheduling.models import Generation, Job

#: How a generation ends that read a point and did not complete an iteration.
_FAILED_STARTS = (RetireReason.FAILED, RetireReason.GIVEN_UP)
#: Retention of a state in memory that is durable as well, while its job does not run.
SPARE_FOR = timedelta(minutes=15)
#: A server's death during a start says nothing about the point, but after this many the point is given up.
_MOST_LOST_STARTS = 3


@dataclass(frozen=True)
class Place:
    """A server's store and its address; no port if it cannot be reached."""

    server: int
    #: Name of the server's rack; empty if unknown.
    rack: str
    #: Address of the server's store.
    address: str
    #: Port of the server's store; None without one.
    port: int | None


@dataclass(frozen=True)
class MemoryPoint:
    """A state with every shard in the memory of some server.

    Attributes:
        iteration: lower bound, since stores advance between reports.
        holders: servers that have each shard, the newest version first.
        bytes: size of each shard.
    """

    generation: Generation
    iteration: int
    holders: tuple[tuple[Place, ...], ...]
    bytes: tuple[int, ...]


@dataclass(frozen=True)
class _Copy:
    iteration: int
    #: Size of the shard.
    bytes: int
    place: Place


class PointsInMemory:
    """Contents of the stores of these jobs' clusters at their agents' last reports."""

    def __init__(self, jobs: Iterable[Job]) -> None:
        jobs = list(jobs)
        agents = _answering(Agent.objects.filter(server__cluster__in={job.cluster_id for job in jobs}))
        if len(jobs) == 1:
            agents = agents.filter(memory_store__holdings__contains=[{"job": jobs[0].pk}])
        wanted = {job.pk for job in jobs}
        #: By job, generation and rank.
        self._copies: dict[str, dict[int, dict[int, list[_Copy]]]] = {}
        for agent in agents.select_related("server").order_by("server_id"):
            server = agent.server
            place = Place(server.pk, server.rack, server.address, server.store_port)
            for entry in agent.memory_store.get("holdings", ()):
                if entry["job"] in wanted:
                    generations = self._copies.setdefault(entry["job"], {})
                    shards = generations.setdefault(entry["generation"], defaultdict(list))
                    shards[entry["rank"]].append(_Copy(entry["iteration"], entry["bytes"], place))

    def newest(self, job: Job, servers: Collection[int]) -> MemoryPoint | None:
        """Return the job's newest state that is complete in memory, reachable from these servers and not
        older than the durable one; None if there is none."""
        found = self._copies.get(job.pk)
        if not found:
            return None
        points = []
        for generation in job.generations.filter(number__in=found, purpose=Purpose.TRAINING):
            shards = {
                rank: [one for one in copies if _within_reach(one.place, generation, servers)]
                for rank, copies in found[generation.number].items()
            }
            whole = all(shards.get(rank) for rank in range(generation.world_size))
            if whole and not _failed_before(job, generation.number):
                points.append(_point(generation, shards))
        newest = max(points, key=lambda point: (point.iteration, point.generation.number), default=None)
        if newest is None or (newest.iteration, newest.generation.number) < _durable(job):
            return None
        return newest

    def state_bytes(self, job: Job) -> int:
        """Return the size of the job's state as far as known; 0 if unknown.

        Before its own state was measured, this is the largest state of a job with the same curve, which
        trains the same function with the same settings. So memory is reserved for the first generation too.
        """
        known = [
            sum(max(copy.bytes for copy in copies) for copies in shards.values())
            for shards in self._copies.get(job.pk, {}).values()
        ]
        own = max(*known, 0, 0 if job.checkpoint is None else int(job.checkpoint.size_bytes))
        return own or (0 if job.curve is None else job.curve.state_bytes)


def _waiting_for_gpus(cluster_id: int) -> QuerySet[Job, Any]:
    unretired = Generation.objects.filter(job=OuterRef("pk"), purpose=Purpose.TRAINING).exclude(
        state=GenerationState.RETIRED
    )
    suspended = Job.objects.filter(cluster=cluster_id, state=JobState.SUSPENDED, paused_by_owner=False)
    return suspended.exclude(Exists(unretired)).values_list("pk")


_WAITING_FOR_GPUS = PreparedValues(_waiting_for_gpus)


def waiting_bytes(cluster: Cluster) -> dict[int, int]:
    """Return how many bytes of waiting jobs' states each server holds in memory, by primary key."""
    # A job that has trained is suspended until it gets GPUs again.
    waiting = {job_id for (job_id,) in _WAITING_FOR_GPUS.ask(cluster.pk)}
    if not waiting:
        return {}
    stores = _answering(Agent.objects.filter(server__cluster=cluster)).values_list(
        "server_id", "memory_store"
    )
    held = [
        (server, entry)
        for server, store in stores
        for entry in store.get("holdings", ())
        if entry["job"] in waiting
    ]
    newest: dict[str, int] = {}
    for _server, entry in held:
        newest[entry["job"]] = max(newest.get(entry["job"], 0), entry["generation"])
    found = Counter[int]()
    for server, entry in held:
        if entry["generation"] == newest[entry["job"]]:
            found[server] += entry["bytes"]
    return dict(found)


def _answering(agents: QuerySet[Agent]) -> QuerySet[Agent]:
    """Filter agents whose stores answer, as far as known."""
    return agents.filter(server__state=ServerState.UP, fenced_at=None, revoked_at=None).exclude(
        memory_store={}
    )


@dataclass(frozen=True)
class Remembered:
    """Jobs whose state a server is to keep in memory, whether or not they run there.

    ``needed``: the durable state is older. ``spare``: the durable state is as new, so this one only saves
    time; it stays for a while unless the memory is needed.
    """

    needed: list[str]
    spare: list[str]


_STORE = PreparedRows(lambda server_id: Agent.objects.filter(server=server_id).only("memory_store"))


def jobs_to_remember(server_id: int, now: datetime) -> Remembered:
    """Return the jobs whose state in a server's memory may still be needed."""
    agent = _STORE.first(server_id)
    held = () if agent is None else agent.memory_store.get("holdings", ())
    newest: dict[str, tuple[int, int]] = {}
    for entry in held:
        place = (entry["iteration"], entry["generation"])
        newest[entry["job"]] = max(newest.get(entry["job"], (0, 0)), place)
    kept = Remembered([], [])
    if not newest:
        return kept
    for job in Job.objects.filter(pk__in=newest).select_related("checkpoint").order_by("pk"):
        if job.finished():
            continue
        iteration, generation = newest[job.pk]
        if iteration > _durable(job)[0]:
            kept.needed.append(job.pk)
        elif _just_stored(job, generation, now):
            kept.spare.append(job.pk)
    return kept


def _just_stored(job: Job, generation: int, now: datetime) -> bool:
    """Return whether the workers that left a state here have also just stored it, as a suspended job's
    workers do. The last report may be older than that."""
    point = job.checkpoint
    if point is None or point.stored_at is None or point.generation != generation:
        return False
    return now - point.stored_at <= SPARE_FOR


def _durable(job: Job) -> tuple[int, int]:
    """Return iteration and generation of the job's newest durable state."""
    point = job.checkpoint
    return (0, 0) if point is None else (int(point.iteration), int(point.generation))


def _point(generation: Generation, shards: Mapping[int, Sequence[_Copy]]) -> MemoryPoint:
    ranks = [sorted(shards[rank], key=lambda copy: -copy.iteration) for rank in range(generation.world_size)]
    return MemoryPoint(
        generation,
        min(copies[0].iteration for copies in ranks),
        tuple(tuple(copy.place for copy in copies) for copies in ranks),
        tuple(copies[0].bytes for copies in ranks),
    )


def _within_reach(place: Place, generation: Generation, servers: Collection[int]) -> bool:
    """Return whether one of these servers has it or can fetch it: stores send nothing without a secret."""
    return place.server in servers or (place.port is not None and generation.store_secret != "")


def _failed_before(job: Job, number: int) -> bool:
    """Return whether a start from that generation's state has failed; then the next start uses the durable
    state."""
    ends = list(
        job.generations.filter(
            start__from="memory", start__generation=number, live_at=None, state=GenerationState.RETIRED
        ).values_list("retired_because", flat=True)
    )
    return any(end in _FAILED_STARTS for end in ends) or ends.count(RetireReason.LOST) >= _MOST_LOST_STARTS
