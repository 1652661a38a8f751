"""Claims on the GPUs of a pool by training generations and measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import NamedTuple

from cluster.models import Cluster
from projects.prepared import PreparedValues
from scheduling.choices import AssignmentState, GenerationState, Purpose
from scheduling.models import Assignment, Generation


class GpuOfPool(NamedTuple):
    """A GPU that a plan may use. A large cluster has thousands, too many for models."""

    id: int
    server_id: int
    healthy: bool
    kind: str


class PoolGeneration(NamedTuple):
    """A generation that is not retired or holds GPUs."""

    id: int
    job_id: str
    purpose: str
    state: str
    goal: str
    start_iteration: int
    created_at: datetime
    held_at: datetime | None
    live_at: datetime | None
    step_expires_at: datetime | None
    retired_at: datetime | None


_UNRETIRED = PreparedValues(
    lambda cluster_id: (
        Generation.objects.filter(job__cluster=cluster_id)
        .exclude(state=GenerationState.RETIRED)
        .values_list(*PoolGeneration._fields)
    )
)
_BY_ID = PreparedValues(
    lambda ids: Generation.objects.filter(pk__any_of=ids).values_list(*PoolGeneration._fields)
)
_UNRELEASED = PreparedValues(
    lambda cluster_id: (
        Assignment.objects.filter(job__cluster=cluster_id)
        .exclude(state=AssignmentState.RELEASED)
        .values_list("generation_id", "job_id", "gpu_id", "rank", "state", "flexible")
    )
)


@dataclass(frozen=True)
class Claims:
    """Generations by job, and the GPUs that they claim, by address in the pool.

    ``placement`` and ``flexible``: GPUs of each generation by rank, and which of them flexible workers hold.
    ``job_of``: the job that claims a GPU. ``waited_for``: the job that gets a GPU once its present holder has
    left; ``job_of`` names that job already. ``servers``: servers of each generation.
    """

    #: All that are not retired, and retired ones whose workers are being stopped, by primary key.
    generations: Mapping[int, PoolGeneration]
    #: Unretired training generations that are not live, by job id.
    coming: Mapping[str, PoolGeneration]
    #: Training generations in the state `live`, by job id.
    live: Mapping[str, PoolGeneration]
    placement: Mapping[int, tuple[int, ...]]
    flexible: Mapping[int, tuple[bool, ...]]
    #: GPUs of each generation whose workers are being stopped.
    clearing: Mapping[int, tuple[int, ...]]
    #: Generations that wait for a GPU.
    waiting: frozenset[int]
    job_of: Mapping[int, str]
    waited_for: Mapping[int, str]
    servers: Mapping[int, frozenset[int]]

    @classmethod
    def read(cls, cluster: Cluster, gpus: Sequence[GpuOfPool]) -> Claims:
        """Read the claims on these GPUs, which are in the order of their addresses."""
        addresses = {gpu.id: address for address, gpu in enumerate(gpus)}
        placement: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
        clearing: dict[int, list[int]] = defaultdict(list)
        waiting: set[int] = set()
        job_of: dict[int, str] = {}
        waited_for: dict[int, str] = {}
        servers: dict[int, set[int]] = defaultdict(set)
        for generation_id, job_id, gpu_id, rank, state, flexible in _UNRELEASED.ask(cluster.pk):
            address = addresses.get(gpu_id)
            if address is None:
                continue
            if state == AssignmentState.CLEARING:
                clearing[generation_id].append(address)
                continue
            placement[generation_id].append((rank, address, flexible))
            job_of[address] = job_id
            if state == AssignmentState.WAITING:
                waiting.add(generation_id)
                waited_for[address] = job_id
            servers[generation_id].add(gpus[address].server_id)
        generations = _generations(cluster, placement.keys() | clearing.keys())
        training = [
            one
            for one in generations.values()
            if one.purpose == Purpose.TRAINING and one.state != GenerationState.RETIRED
        ]
        by_rank = {key: sorted(held) for key, held in placement.items()}
        return cls(
            generations,
            {one.job_id: one for one in training if one.state != GenerationState.LIVE},
            {one.job_id: one for one in training if one.state == GenerationState.LIVE},
            {key: tuple(address for _, address, _ in held) for key, held in by_rank.items()},
            {key: tuple(mark for _, _, mark in held) for key, held in by_rank.items()},
            {key: tuple(held) for key, held in clearing.items()},
            frozenset(waiting),
            job_of | waited_for,
            waited_for,
            {k: frozenset(v) for k, v in servers.items()},
        )

    def marks(self, shown: PoolGeneration | None, placement: tuple[int, ...]) -> tuple[bool, ...]:
        """Return which GPUs of ``placement`` flexible workers hold, as the planner decided; empty if none."""
        if shown is None or not placement:
            return ()
        marked = dict(zip(self.placement[shown.id], self.flexible[shown.id], strict=True))
        marks = tuple(marked[address] for address in placement)
        return marks if any(marks) else ()


def _generations(cluster: Cluster, holding: set[int]) -> dict[int, PoolGeneration]:
    """Return unretired generations, and those ``holding`` GPUs, by primary key."""
    found = {row[0]: PoolGeneration._make(row) for row in _UNRETIRED.ask(cluster.pk)}
    if retired := sorted(holding - found.keys()):
        found |= {row[0]: PoolGeneration._make(row) for row in _BY_ID.ask(retired)}
    return found
