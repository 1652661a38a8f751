"""Recovery points in the memory of servers, as their agents report them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from cluster.models import Agent
from scheduling.choices import GenerationState, Purpose, RetireReason
from scheduling.models import Generation, Job

#: Ends of a generation that began to read a point and did not get as far as an iteration.
_FAILED_STARTS = (RetireReason.FAILED, RetireReason.GIVEN_UP, RetireReason.LOST)


@dataclass(frozen=True)
class MemoryPoint:
    """A state of which every shard is in the memory of some server.

    Attributes:
        iteration: at least so far; stores go on while nobody reports. holders: the server of each shard.
        bytes: size of each shard.
    """

    generation: Generation
    iteration: int
    holders: tuple[int, ...]
    bytes: tuple[int, ...]


@dataclass(frozen=True)
class _Shard:
    iteration: int
    bytes: int
    server: int


class PointsInMemory:
    """What the stores of some servers held when their agents last reported."""

    def __init__(self, servers: Iterable[int]) -> None:
        agents = Agent.objects.filter(server_id__in=set(servers), fenced_at=None, revoked_at=None)
        self._entries: dict[str, list[tuple[int, Mapping[str, Any]]]] = defaultdict(list)
        for server, store in agents.values_list("server_id", "memory_store"):
            for entry in (store or {}).get("holdings", ()):
                self._entries[entry["job"]].append((server, entry))

    def newest(self, job: Job, servers: Sequence[int]) -> MemoryPoint | None:
        """The job's newest state that is whole in the memory of these servers and newer than the durable one;
        None where there is none."""
        shards: dict[int, dict[int, _Shard]] = defaultdict(dict)
        for server, entry in self._entries.get(job.pk, ()):
            if server not in servers:
                continue
            known = shards[entry["generation"]].get(entry["rank"])
            if known is None or known.iteration < entry["iteration"]:
                found = _Shard(entry["iteration"], entry["bytes"], server)
                shards[entry["generation"]][entry["rank"]] = found
        if not shards:
            return None
        points = [
            _point(generation, shards[generation.number])
            for generation in job.generations.filter(number__in=shards, purpose=Purpose.TRAINING)
            if set(range(generation.world_size)) <= set(shards[generation.number])
            and not _failed_before(job, generation.number)
        ]
        newest = max(points, key=lambda point: (point.iteration, point.generation.number), default=None)
        return newest if newest is not None and newest.iteration > _durable(job) else None


def jobs_to_remember(server_id: int) -> list[str]:
    """Jobs of which a server holds a state in memory that may be wanted yet: none as new is durable."""
    found = Agent.objects.filter(server_id=server_id).values_list("memory_store", flat=True).first() or {}
    newest: dict[str, int] = {}
    for entry in found.get("holdings", ()):
        newest[entry["job"]] = max(newest.get(entry["job"], 0), entry["iteration"])
    jobs = Job.objects.filter(pk__in=newest).select_related("checkpoint")
    return sorted(job.pk for job in jobs if not job.finished() and newest[job.pk] > _durable(job))


def _durable(job: Job) -> int:
    return 0 if job.checkpoint is None else int(job.checkpoint.iteration)


def _point(generation: Generation, shards: Mapping[int, _Shard]) -> MemoryPoint:
    parts = [shards[rank] for rank in range(generation.world_size)]
    return MemoryPoint(
        generation,
        min(part.iteration for part in parts),
        tuple(part.server for part in parts),
        tuple(part.bytes for part in parts),
    )


def _failed_before(job: Job, number: int) -> bool:
    """Whether a start from what that generation left was tried in vain: the next one takes the durable
    state."""
    return job.generations.filter(
        start__from="memory",
        start__generation=number,
        live_at=None,
        state=GenerationState.RETIRED,
        retired_because__in=_FAILED_STARTS,
    ).exists()
