"""Jobs' recovery points, how well they are protected, and what the loss of each server would cost.

Based on agents' last reports about their servers' in-memory stores; the stores may be ahead.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from datetime import datetime
from functools import cached_property
from typing import Any

from cluster.choices import ServerState
from cluster.models import Agent
from scheduling.choices import GenerationState, JobState, ProtectionState, Purpose, StateSource
from scheduling.models import Assignment, Generation, Job

#: Delay until agents report what is kept.
REPORTS_SECONDS = 10.0


@dataclass(frozen=True)
class Shard:
    """A rank's shard in a server's memory."""

    rank: int
    server: int
    iteration: int
    #: Size of the shard.
    bytes: int
    completed_at: datetime
    #: Existing and intended copies; 0 if not reported.
    copies: int
    wanted_copies: int


@dataclass(frozen=True)
class Point:
    """A state from which the job could continue. ``stored_at``: when its last part was stored; None
    without any."""

    iteration: int
    stored_at: datetime | None

    def age_seconds(self, now: datetime) -> float | None:
        """Return its age."""
        return None if self.stored_at is None else max(0.0, (now - self.stored_at).total_seconds())


@dataclass(frozen=True)
class Holder:
    """A server's part of a job: the ``ranks`` of its shards, their bytes, and their oldest iteration."""

    server: int
    name: str
    ranks: tuple[int, ...]
    #: Size of the shards that it holds.
    bytes: int
    iteration: int


@dataclass(frozen=True)
class Loss:
    """The job's loss if a server died now. ``seconds``: of training; None if its speed is unknown."""

    server: int
    name: str
    iterations: int
    seconds: float | None
    source: StateSource


@dataclass(frozen=True)
class CopyTraffic:
    """How a job sends copies of its points, as its rank 0 plans and measures (docs/protocols.md 2.7)."""

    every: int
    iterations: int
    bytes: int
    iteration_seconds: float
    idle_seconds: float
    copy_seconds: float
    extension_seconds: float
    with_seconds: float | None
    without_seconds: float | None

    @property
    def cost(self) -> float | None:
        """Return the relative slowdown of iterations with copies under way; None until measured."""
        if self.with_seconds is None or not self.without_seconds:
            return None
        return self.with_seconds / self.without_seconds - 1.0

    @property
    def idle_share_used(self) -> float | None:
        """Return the share of the network's idle time that copies take by the plan, above 1 if they
        lengthen iterations; None if the network is never idle."""
        idle = self.every * self.idle_seconds
        return self.copy_seconds / idle if idle > 0.0 else None


def copy_traffic(job: Job) -> CopyTraffic | None:
    """Return the live generation's copy traffic; None until reported."""
    found = (
        job.generations.filter(purpose=Purpose.TRAINING, state=GenerationState.LIVE)
        .order_by("-number")
        .values_list("copy_traffic", flat=True)
        .first()
    )
    return _traffic(found) if found else None


def copy_traffics(jobs: Collection[str]) -> dict[str, CopyTraffic]:
    """Return the same for many jobs, without those that have not reported."""
    live = Generation.objects.filter(
        job__in=jobs, purpose=Purpose.TRAINING, state=GenerationState.LIVE
    ).order_by("number")
    return {job: _traffic(told) for job, told in live.values_list("job_id", "copy_traffic") if told}


def _traffic(told: Mapping[str, Any]) -> CopyTraffic:
    return CopyTraffic(**{each.name: told[each.name] for each in fields(CopyTraffic)})


@dataclass(frozen=True)
class MemoryState:
    """A job's newest recovery points, in memory and durable."""

    job: Job
    #: Number and ranks of the live generation.
    generation: int
    ranks: int
    #: Names of all relevant servers, by id; ids of the servers of its ranks.
    servers: Mapping[int, str]
    on: tuple[int, ...]
    shards: Sequence[Shard]
    #: The newest durable state.
    durable: Point
    #: Why there are fewer copies than ordered; empty if there are not.
    reason: str = ""
    #: Ordered copies of each shard, including the local one; 0 if memory keeps none.
    ordered: int = 0
    #: Servers that do not report, or whose stores do not answer: their copies may be gone.
    silent: frozenset[int] = frozenset()

    @cached_property
    def in_memory(self) -> Point | None:
        """The newest state that is complete in memory, or None."""
        return self._whole(set())

    @property
    def reached(self) -> int:
        """Completed iterations, as far as reported."""
        return max(self.job.iterations_done, self.durable.iteration, *(one.iteration for one in self.shards))

    @property
    def lacking(self) -> list[int]:
        """Ranks whose states have fewer copies than ordered."""
        return sorted({one.rank for one in self.shards if one.copies < one.wanted_copies})

    @property
    def protection(self) -> ProtectionState:
        """Full: all ordered copies exist, and no single server's loss costs the point. None: no state is
        complete in memory, or only one worth less than the durable one. Stores that do not answer do not
        count."""
        if self._whole(self.silent) is None or self.is_stale:
            return ProtectionState.NONE
        alone = any(self._whole({server, *self.silent}) is None for server in self._concerned())
        return ProtectionState.DEGRADED if alone or self.lacking else ProtectionState.FULL

    @property
    def is_stale(self) -> bool:
        """Whether the durable state is newer than the one in memory, and training has continued without a
        new point in memory for longer than the interval of durable states. Points in memory must not be
        rarer."""
        point, pace = self._whole(self.silent), self.job.iterations_per_second or 0.0
        if point is None or pace <= 0.0 or point.iteration >= self.durable.iteration:
            return False
        return (self.reached - point.iteration) / pace > self.job.checkpoint_seconds + REPORTS_SECONDS

    def committed_lag(self) -> int | None:
        """Return the iterations by which the newest point in memory is behind training."""
        return None if self.in_memory is None else self.reached - self.in_memory.iteration

    def holders(self) -> list[Holder]:
        """Return what each server holds."""
        kept: dict[int, list[Shard]] = defaultdict(list)
        for shard in self.shards:
            kept[shard.server].append(shard)
        return [
            Holder(
                server,
                self.servers.get(server, str(server)),
                tuple(sorted(one.rank for one in some)),
                sum(one.bytes for one in some),
                min(one.iteration for one in some),
            )
            for server, some in sorted(kept.items())
        ]

    def losses(self) -> list[Loss]:
        """Return what the loss of each server of the job would cost."""
        found = []
        for server in self._concerned():
            left = self._whole({server})
            if left is not None and left.iteration > self.durable.iteration:
                source = StateSource.PEER_MEMORY if server in self.on else StateSource.OWN_MEMORY
            else:
                left = self.durable
                source = StateSource.NONE if left.stored_at is None else StateSource.DURABLE
            lost = self.reached - left.iteration
            pace = self.job.iterations_per_second or 0.0
            seconds = lost / pace if pace > 0 else (0.0 if not lost else None)
            found.append(Loss(server, self.servers.get(server, str(server)), lost, seconds, source))
        return found

    def _concerned(self) -> list[int]:
        return sorted({*self.on, *(one.server for one in self.shards)})

    def _whole(self, without: Collection[int]) -> Point | None:
        """Return the newest state with every shard on a remaining server."""
        best: dict[int, Shard] = {}
        for shard in self.shards:
            known = best.get(shard.rank)
            if shard.server not in without and (known is None or known.iteration < shard.iteration):
                best[shard.rank] = shard
        if not set(range(self.ranks)) <= set(best):
            return None
        return Point(
            min(one.iteration for one in best.values()), max(one.completed_at for one in best.values())
        )


def memory_states(jobs: Iterable[Job]) -> dict[str, MemoryState]:
    """Return the states of the training jobs among these, in a few queries. The jobs come with their
    checkpoints."""
    by_id = {job.pk: job for job in jobs}
    generations = Generation.objects.filter(
        job__in=by_id, purpose=Purpose.TRAINING, state=GenerationState.LIVE
    ).only("job_id", "number", "world_size", "protection")
    live = {one.job_id: one for one in generations}
    if not live:
        return {}
    on: dict[str, set[int]] = defaultdict(set)
    members = Assignment.objects.filter(generation__in=list(live.values())).order_by()
    for job_id, rank, server in members.values_list("job_id", "rank", "gpu__server_id"):
        if rank < live[job_id].world_size:
            on[job_id].add(server)
    names: dict[int, str] = {}
    problems: dict[int, str] = {}
    silent: set[int] = set()
    shards: dict[str, list[Shard]] = defaultdict(list)
    agents = Agent.objects.filter(
        server__cluster__in={job.cluster_id for job in by_id.values()}, fenced_at=None, revoked_at=None
    )
    rows = agents.values_list("server_id", "server__name", "server__state", "memory_store")
    for server, name, server_state, store in rows:
        names[server] = name
        problems[server] = store.get("problem", "")
        if server_state != ServerState.UP or store.get("silent_seconds", 0.0) > 0.0:
            silent.add(server)
            what = "server" if server_state != ServerState.UP else "the in-memory store of"
            problems[server] = f"{what} {name} does not answer"
        for entry in store.get("holdings", ()):
            generation = live.get(entry["job"])
            if generation is not None and entry["generation"] == generation.number:
                shards[entry["job"]].append(_shard(server, entry))
    found: dict[str, MemoryState] = {}
    for job_id, generation in live.items():
        concerned = on[job_id] | {shard.server for shard in shards[job_id]}
        known = [
            problems[server] for server in sorted(concerned & silent) + sorted(on[job_id] & problems.keys())
        ]
        found[job_id] = MemoryState(
            by_id[job_id],
            generation.number,
            generation.world_size,
            names,
            tuple(sorted(on[job_id])),
            shards[job_id],
            durable_point(by_id[job_id]),
            _reason(generation, known),
            int(generation.protection.get("replicas", 0)),
            frozenset(concerned & silent),
        )
    return found


def _reason(generation: Generation, problems: Sequence[str]) -> str:
    """Return why copies were refused at placement, else what prevents them on its servers."""
    refused = str(generation.protection.get("reason", ""))
    return refused or next((problem for problem in problems if problem), "")


def memory_states_of_running() -> dict[str, MemoryState]:
    """Return the states of all running jobs by job."""
    return memory_states(Job.objects.filter(state=JobState.RUNNING).select_related("checkpoint"))


def memory_state(job: Job) -> MemoryState | None:
    """Return the job's `memory_states`; None if it does not train."""
    return memory_states([job]).get(job.pk)


def _shard(server: int, entry: Mapping[str, Any]) -> Shard:
    return Shard(
        entry["rank"],
        server,
        entry["iteration"],
        entry["bytes"],
        datetime.fromisoformat(entry["completed_at"]),
        entry.get("copies", 0),
        entry.get("wanted_copies", 0),
    )


def durable_point(job: Job) -> Point:
    """Return the newest durable state; before the first one, the beginning."""
    checkpoint = job.checkpoint
    if checkpoint is None:
        return Point(0, None)
    return Point(checkpoint.iteration, checkpoint.complete_at or checkpoint.stored_at)
