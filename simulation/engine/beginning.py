"""A simulation that begins in the middle: jobs that were admitted, planned and placed before time 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np

from scheduling.core.snapshot import StoredPlan
from scheduling.core.stored_plans import cut_stored
from simulation.engine.jobs import ACTIVE
from simulation.engine.run import Simulation


@dataclass(frozen=True, slots=True)
class UnderWay:
    """One such job. ``addresses``: GPUs that it holds, none while it waits. Times are seconds from time 0, as those
    of ``plan`` are; ``started_at`` is NaN before the first start. ``planned_finish_at``: as it was promised.
    """

    promised: bool
    addresses: tuple[int, ...] = ()
    at_risk: bool = False
    pause_left_seconds: float = 0.0
    started_at: float = nan
    planned_finish_at: float = nan
    plan: StoredPlan | None = None


def begin_under_way(simulation: Simulation, under_way: Sequence[UnderWay], pool_number: int = 0) -> None:
    """Let the workload's first jobs be under way in a pool when the simulation begins: job i is ``under_way[i]``.

    Nobody asks them again whether they are admitted. Call it before the run, at most once.
    """
    pool, jobs, fates = simulation.pools[pool_number], simulation.jobs, simulation.fates
    rows = np.arange(len(under_way))
    simulation.leave_out_arrivals(rows.size)
    jobs.phase[rows] = ACTIVE
    jobs.pool[rows] = pool_number
    jobs.decided[rows] = True
    jobs.promised[rows] = [one.promised for one in under_way]
    jobs.at_risk[rows] = [one.at_risk for one in under_way]
    fates.decided_at[rows] = simulation.workload.submitted_at[rows]
    fates.started_at[rows] = [one.started_at for one in under_way]
    fates.planned_finish_at[rows] = [one.planned_finish_at for one in under_way]
    for row, one in enumerate(under_way):
        gpus = len(one.addresses)
        jobs.take_gpus(row, gpus, pool.tables.rate(row, gpus), one.pause_left_seconds, 0.0)
        if gpus:
            simulation.recorder.allocation(0.0, row, gpus)
    jobs.forecast_finish(rows, 0.0)
    pool.rows = rows
    pool.plans = cut_stored([one.plan for one in under_way], 0.0, 0.0)
    pool.addresses = np.array([address for one in under_way for address in one.addresses], dtype=np.int64)
    pool.offsets = np.cumsum([0, *(len(one.addresses) for one in under_way)], dtype=np.int64)
    pool.wake_at = 0.0
