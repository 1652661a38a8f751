"""What must hold after every event if jobs have ranges of workers on owned and borrowed servers (Lyra)."""

from __future__ import annotations

import numpy as np

from scheduling.core.lyra.fleet import FLEXIBLE
from scheduling.core.problem.answer import Answer
from scheduling.core.question.snapshot import IntArray
from simulation.engine.checks.invariants import InvariantViolation
from simulation.engine.world.pool import PoolState
from simulation.engine.world.running import ACTIVE
from simulation.engine.world.shared_pool import SharedPool
from simulation.engine.world.world import World


class SharedInvariantCheck:
    """Call it after every answer that a shared pool applied."""

    def __init__(self) -> None:
        self.checked = 0

    def __call__(self, world: World, pool: PoolState, answer: Answer) -> None:
        """Raise InvariantViolation naming the first invariant that does not hold."""
        self.checked += 1
        assert isinstance(pool, SharedPool)
        if np.unique(pool.addresses).size != pool.addresses.size:
            raise InvariantViolation("L1: a GPU has two jobs")
        server_of = pool.servers.server_of()
        there = np.concatenate((pool.usable, (pool.on_loan & ~pool.broken)[pool.usable.size :]))
        for position, row in enumerate(pool.rows.tolist()):
            held = pool.addresses[pool.offsets[position] : pool.offsets[position + 1]]
            if world.jobs.phase[row] != ACTIVE or not held.size:
                continue
            name = world.workload.job_id[row]
            servers, gpus = np.unique(server_of[held], return_counts=True)
            if not there[servers].all():
                raise InvariantViolation(f"L2: job {name} is on a server that is lost or not on loan")
            marks = pool.flexible[pool.offsets[position] : pool.offsets[position + 1]]
            _check_workers(pool, row, name, servers, gpus)
            based = np.unique(server_of[held[~marks]])
            if (pool.on_loan[based] & (pool.role[based] == FLEXIBLE)).any():
                raise InvariantViolation(f"L6: a base worker of job {name} is among flexible ones")


def _check_workers(pool: SharedPool, row: int, name: str, servers: IntArray, gpus: IntArray) -> None:
    """Require that workers do not span servers, that their number is in the job's range, and that they are of
    one kind unless the job mixes."""
    tables = pool.workers
    width = int(tables.ranges.gpus_per_worker[row])
    if (gpus % width).any():
        raise InvariantViolation(f"L3: a worker of job {name} ({width} GPUs) spans servers: {gpus.tolist()}")
    lent = int(gpus[pool.on_loan[servers]].sum()) // width
    owned = int(gpus.sum()) // width - lent
    if owned and lent and not tables.ranges.mixes[row]:
        raise InvariantViolation(f"L4: job {name} is on both kinds of servers")
    if owned and lent:
        return
    for speeds, workers in ((tables.owned, owned), (tables.lent, lent)):
        listed = speeds.workers[speeds.offsets[row] : speeds.offsets[row + 1]]
        if workers and workers not in listed:
            raise InvariantViolation(f"L5: job {name} has {workers} workers, which its range does not hold")
