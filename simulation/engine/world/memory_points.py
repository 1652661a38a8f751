"""Recovery points in memory while a simulation runs: which losses of servers they survive.

A job's state is on its own servers and, if these are fewer than its replicas, on others as well: the point of
the iteration before the one in progress is complete on all of them. The placement (`recovery.placement`) says
which losses it survives.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np

from recovery.placement.domains import FailureDomains
from recovery.placement.memory import Machine, placed_on
from recovery.placement.strategies import Placement
from simulation.engine.world.jobs import JobStates
from simulation.engine.world.pool import PoolState
from simulation.engine.world.running import ACTIVE


class Loss(StrEnum):
    """What a job falls back to when one of its servers is lost; the values name the counts."""

    #: Nothing lost: it was not training, and its state is still in memory.
    NOTHING = "recoveries_begun_anew"
    #: The point of the iteration before the one in progress.
    MEMORY = "recoveries_from_memory"
    #: The last durable state.
    DURABLE = "recoveries_from_durable"


@dataclass
class _OpenRecovery:
    """A job that has not trained since it lost a server."""

    servers: tuple[int, ...]
    placement: Placement
    lost: set[int] = field(default_factory=set)

    def survives(self) -> bool:
        return not any(held <= self.lost for held in self.placement.replica_sets())


class MemoryPoints:
    """Recoveries under way in one run. ``replicas``: copies of each state, the local one included."""

    def __init__(self, replicas: int, servers_per_rack: Sequence[int]) -> None:
        self.replicas = replicas
        self._per_rack = servers_per_rack
        self._open: dict[int, _OpenRecovery] = {}

    def fall_back(
        self, jobs: JobStates, pool: PoolState, server: int, struck: Sequence[int], now: float, every: float
    ) -> list[Loss]:
        """Stop the jobs of a lost server and reset them to what is left of their state; also reset jobs
        that left the server and have not trained since.

        ``struck``: unfinished jobs on the server; ``every``: seconds between durable states.
        """
        losses = []
        for row in struck:
            trained = jobs.trains(row)
            losses.append(self._struck(jobs, row, pool, server, trained))
            if losses[-1] is Loss.MEMORY:
                jobs.strike_in_memory(row, now, every)
            elif losses[-1] is Loss.NOTHING:
                jobs.stand_still(row)
            elif trained:
                jobs.strike(row, now, every)
            else:
                jobs.lose_memory(row, now)
        for row in self._also_lost(jobs, pool.number, server, struck):
            jobs.lose_memory(row, now)
            losses.append(Loss.DURABLE)
        return losses

    def _struck(self, jobs: JobStates, row: int, pool: PoolState, server: int, trained: bool) -> Loss:
        if trained or row not in self._open:
            servers = pool.servers_of(row)
            there = np.flatnonzero(pool.usable & ~pool.silent[: pool.usable.size]).tolist()
            others = [one for one in there if one not in servers]
            self._open[row] = self._begun(pool.number, servers, others)
        recovery = self._open[row]
        if server in recovery.servers:
            recovery.lost.add(recovery.servers.index(server))
        if recovery.survives():
            return Loss.MEMORY if trained else Loss.NOTHING
        del self._open[row]
        return Loss.DURABLE

    def _also_lost(self, jobs: JobStates, pool: int, server: int, struck: Collection[int]) -> list[int]:
        gone = []
        for row, recovery in list(self._open.items()):
            if jobs.phase[row] != ACTIVE or jobs.trains(row):
                del self._open[row]
            elif row not in struck and jobs.pool[row] == pool and server in recovery.servers:
                recovery.lost.add(recovery.servers.index(server))
                if not recovery.survives():
                    del self._open[row]
                    gone.append(row)
        return gone

    def _begun(self, pool: int, servers: list[int], others: Sequence[int]) -> _OpenRecovery:
        """Return the placement over a job's servers. If they are too few, servers are added, those of other
        racks first, in cyclic order from the job's first server."""
        racks = {self._rack(pool, server) for server in servers}
        turn = sorted(others, key=lambda one: (self._rack(pool, one) in racks, one < servers[0], one))
        keeping = [*servers, *turn[: max(0, self.replicas - len(servers))]]
        machines = [
            Machine(str(one), 0, 0, FailureDomains(rack=str(self._rack(pool, one)))) for one in keeping
        ]
        return _OpenRecovery(tuple(keeping), placed_on(machines, min(self.replicas, len(keeping))))

    def _rack(self, pool: int, server: int) -> int:
        per_rack = self._per_rack[pool]
        return server // per_rack if per_rack else 0
