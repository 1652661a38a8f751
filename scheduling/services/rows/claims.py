"""Claims on the GPUs of a pool by training generations and measurements."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass

from cluster.models import Cluster
from projects.prepared import PreparedRows, PreparedValues
from scheduling.choices import AssignmentState, GenerationState, Purpose
from scheduling.models import Assignment, Generation

_UNRETIRED = PreparedRows(
    lambda cluster_id: (
        Generation.objects.filter(job__cluster=cluster_id, purpose=Purpose.TRAINING)
        .exclude(state=GenerationState.RETIRED)
        .only("job", "state", "goal", "start_iteration", "created_at", "live_at")
    )
)
_UNRELEASED = PreparedValues(
    lambda cluster_id: (
        Assignment.objects.filter(job__cluster=cluster_id)
        .exclude(state=AssignmentState.RELEASED)
        .values_list("generation_id", "job_id", "gpu_id", "rank", "state", "gpu__server_id", "flexible")
    )
)


@dataclass(frozen=True)
class Claims:
    """Unretired training generations by job, and the GPUs that they and measurements claim, by address in the
    pool.

    ``placement`` and ``flexible``: GPUs of each generation by rank, and which of them flexible workers hold.
    ``job_of``: the job that claims a GPU. ``waited_for``: the job that gets a GPU once its present holder has
    left; ``job_of`` names that job already. ``servers``: servers of each generation.
    """

    #: Other unretired generations, by job id.
    coming: Mapping[str, Generation]
    #: Generations in the state `live`, by job id.
    live: Mapping[str, Generation]
    placement: Mapping[int, tuple[int, ...]]
    flexible: Mapping[int, tuple[bool, ...]]
    job_of: Mapping[int, str]
    waited_for: Mapping[int, str]
    servers: Mapping[int, frozenset[int]]

    @classmethod
    def read(cls, cluster: Cluster, addresses: Mapping[int, int]) -> Claims:
        coming: dict[str, Generation] = {}
        live: dict[str, Generation] = {}
        for generation in _UNRETIRED.ask(cluster.pk):
            target = live if generation.state == GenerationState.LIVE else coming
            target[generation.job_id] = generation
        placement: dict[int, list[tuple[int, int, bool]]] = defaultdict(list)
        job_of: dict[int, str] = {}
        waited_for: dict[int, str] = {}
        servers: dict[int, set[int]] = defaultdict(set)
        for generation_id, job_id, gpu_id, rank, state, server_id, flexible in _UNRELEASED.ask(cluster.pk):
            if gpu_id not in addresses:
                continue
            address = addresses[gpu_id]
            if state == AssignmentState.CLEARING:
                continue
            placement[generation_id].append((rank, address, flexible))
            job_of[address] = job_id
            if state == AssignmentState.WAITING:
                waited_for[address] = job_id
            servers[generation_id].add(server_id)
        by_rank = {key: sorted(held) for key, held in placement.items()}
        return cls(
            coming,
            live,
            {key: tuple(address for _, address, _ in held) for key, held in by_rank.items()},
            {key: tuple(mark for _, _, mark in held) for key, held in by_rank.items()},
            job_of | waited_for,
            waited_for,
            {k: frozenset(v) for k, v in servers.items()},
        )

    def marks(self, shown: Generation | None, placement: tuple[int, ...]) -> tuple[bool, ...]:
        """Return which GPUs of ``placement`` flexible workers hold, as the planner decided; empty if none."""
        if shown is None or not placement:
            return ()
        marked = dict(zip(self.placement[shown.pk], self.flexible[shown.pk], strict=True))
        marks = tuple(marked[address] for address in placement)
        return marks if any(marks) else ()
