"""Gandiva's server sets: groups of servers that run jobs of one size, taking turns.

As in the simulator of Tiresias, with which ElasticFlow compares: jobs are grouped by the GPUs they
ask for; a group owns sets of servers; a set runs as many jobs at once as fit on it, the others wait in it for
their turn.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil, floor

import numpy as np

from scheduling.core.question.snapshot import FloatArray

COLUMNS = 4
"""Numbers kept for each set from one decision to the next: GPUs of a job, servers, load, when turns
changed."""


@dataclass
class ServerSet:
    """A set of servers that run jobs of one size in turns."""

    #: GPUs of each job in the set.
    job_gpus: int
    #: Number of servers.
    servers: int
    #: Load of the jobs that were added.
    load: float = 0.0
    #: When turns last changed, in seconds on the caller's axis.
    turned_at: float = 0.0
    #: Rows of the jobs; those whose turn it is come first.
    jobs: list[int] = field(default_factory=list)

    def places(self, server_gpus: int) -> int:
        """How many of its jobs run at once."""
        return self.servers * server_gpus // self.job_gpus

    def running(self, server_gpus: int) -> list[int]:
        """The jobs whose turn it is."""
        return self.jobs[: self.places(server_gpus)]


@dataclass
class ServerSets:
    """All sets of a cluster."""

    #: GPUs of one server.
    server_gpus: int
    #: Number of servers, in sets or free.
    servers: int
    #: The sets by GPUs of their jobs, the least loaded first.
    groups: dict[int, list[ServerSet]] = field(default_factory=dict)

    @property
    def free_servers(self) -> int:
        """Servers without a set."""
        return self.servers - sum(server_set.servers for server_set in self.every())

    def every(self) -> Iterable[ServerSet]:
        """All sets, smaller jobs first."""
        return (server_set for size in sorted(self.groups) for server_set in self.groups[size])

    def group(self, job_gpus: int) -> list[ServerSet]:
        """The sets for jobs of that size."""
        return self.groups.setdefault(job_gpus, [])

    def servers_for(self, job_gpus: int) -> int:
        """Servers of a new set for jobs of that size."""
        return ceil(job_gpus / self.server_gpus)

    def gpus_of_new(self, job_gpus: int) -> int:
        """GPUs of a new set for jobs of that size."""
        return self.servers_for(job_gpus) * self.server_gpus

    def opened(self, job_gpus: int) -> ServerSet | None:
        """A new set of free servers, in no group yet, or None."""
        needed = self.servers_for(job_gpus)
        return ServerSet(job_gpus, needed) if needed <= self.free_servers else None

    # Memory ----------------------------------------------------------------------------------

    def remembered(self) -> FloatArray:
        """The sets as numbers, in the order of `every`."""
        rows = [
            [server_set.job_gpus, server_set.servers, server_set.load, server_set.turned_at]
            for server_set in self.every()
        ]
        return np.array(rows, dtype=np.float64).reshape(-1)

    @classmethod
    def recalled(
        cls, memory: FloatArray, server_gpus: int, servers: int
    ) -> tuple[ServerSets, list[ServerSet]]:
        """The sets of an earlier decision without their jobs, and the same as a list."""
        sets = cls(server_gpus, servers)
        numbered = []
        for job_gpus, count, load, turned_at in memory.reshape(-1, COLUMNS).tolist():
            server_set = ServerSet(int(job_gpus), int(count), load, turned_at)
            sets.group(int(job_gpus)).append(server_set)
            numbered.append(server_set)
        return sets, numbered


def add_in_order(group: list[ServerSet], server_set: ServerSet) -> None:
    """Insert a set into its group, before sets of equal load."""
    group.insert(bisect_left(group, server_set.load, key=lambda other: other.load), server_set)


def spread(group: list[ServerSet], jobs: list[int]) -> None:
    """Add each job to the set that is least loaded at that time."""
    group.sort(key=lambda server_set: server_set.load)
    for row in jobs:
        lightest = group.pop(0)
        lightest.load += 1.0
        lightest.jobs.append(row)
        add_in_order(group, lightest)


def rebalance(sets: ServerSets, *, as_published: bool = False) -> None:
    """Move servers between groups until each has its share of the GPUs that jobs request.

    ``as_published``: deal a group's jobs anew as the published simulator does, see `_expand`.
    """
    asked = {
        size: size * sum(len(server_set.jobs) for server_set in sets.groups[size])
        for size in sorted(sets.groups)
    }
    total = sum(asked.values())
    cluster = sets.servers * sets.server_gpus
    owned = {
        size: sets.server_gpus * sum(server_set.servers for server_set in sets.groups[size]) for size in asked
    }
    for size, demand in asked.items():
        if demand == 0:
            continue
        missing = min(floor(demand / total * cluster), demand) - owned[size]
        if missing > 0:
            steps = ceil(missing / size) if as_published else ceil(missing / sets.gpus_of_new(size))
            _expand(sets, size, steps, as_published)
        elif missing < 0:
            steps = ceil(-missing / size) if as_published else -missing // sets.gpus_of_new(size)
            _shrink(sets, size, steps)


def _expand(sets: ServerSets, size: int, steps: int, as_published: bool) -> None:
    """Open up to ``steps`` sets; deal the group's jobs anew if at least one was opened.

    The published simulator (``as_published``) deals anew even when no server was free, yet does not when all
    requested sets of one server were opened.
    """
    group = sets.group(size)
    opened = 0
    for _ in range(steps):
        fresh = sets.opened(size)
        if fresh is None:
            break
        group.append(fresh)
        opened += 1
    deals = opened > 0
    if as_published:
        deals = opened < steps or sets.servers_for(size) > 1
    if deals:
        deal_afresh(group)


def _shrink(sets: ServerSets, size: int, steps: int) -> None:
    """Close up to ``steps`` of the least loaded sets, but never the last; their jobs move to the others."""
    group = sets.group(size)
    leaving = group[: min(steps, len(group) - 1)]
    del group[: len(leaving)]
    spread(group, [row for server_set in leaving for row in server_set.jobs])


def deal_afresh(group: list[ServerSet]) -> None:
    """Deal all jobs of a group to its sets in turn, in the order of sets and turns."""
    jobs = [row for server_set in group for row in server_set.jobs]
    for server_set in group:
        server_set.jobs = []
        server_set.load = 0.0
    spread(group, jobs)


def rotate(server_set: ServerSet, server_gpus: int) -> None:
    """Move the jobs that ran behind those that waited, if any waited."""
    turn = server_set.places(server_gpus)
    if len(server_set.jobs) > turn:
        server_set.jobs = server_set.jobs[turn:] + server_set.jobs[:turn]
