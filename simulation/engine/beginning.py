"""A simulation that begins with jobs already admitted, planned and placed before time 0."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import nan

import numpy as np

from scheduling.core.lyra.worker_changes import roles_with
from scheduling.core.plans.stored_plans import cut_stored
from scheduling.core.question.snapshot import StoredPlan
from simulation.engine.run import Simulation
from simulation.engine.world.running import ACTIVE
from simulation.engine.world.shared_pool import SharedPool


@dataclass(frozen=True, slots=True)
class UnderWay:
    """A job under way at time 0. ``addresses``: GPUs that it holds, none while it waits; GPUs of servers on
    loan are numbered after the owned ones. ``flexible``: for each GPU, whether a flexible worker holds it;
    empty means none. Times, those of ``plan`` too, are seconds from time 0. ``started_at`` is NaN before the
    first start. ``planned_finish_at``: as promised.
    """

    promised: bool
    addresses: tuple[int, ...] = ()
    at_risk: bool = False
    pause_left_seconds: float = 0.0
    started_at: float = nan
    planned_finish_at: float = nan
    plan: StoredPlan | None = None
    flexible: tuple[bool, ...] = ()


def begin_under_way(
    simulation: Simulation, under_way: Sequence[UnderWay], pool_number: int = 0, *, on_loan: int = 0
) -> None:
    """Put the workload's first jobs under way in a pool at the beginning: job i is ``under_way[i]``.

    They are not decided on again. ``on_loan``: number of inference servers, the first ones, already on loan.
    Call it before the run, at most once.
    """
    pool, jobs, fates = simulation.pools[pool_number], simulation.jobs, simulation.fates
    rows = np.arange(len(under_way))
    simulation.leave_out_arrivals(rows.size)
    jobs.phase[rows] = ACTIVE
    jobs.pool[rows] = pool_number
    jobs.decided[rows] = True
    jobs.promised[rows] = [job.promised for job in under_way]
    jobs.at_risk[rows] = [job.at_risk for job in under_way]
    fates.decided_at[rows] = simulation.workload.submitted_at[rows]
    fates.started_at[rows] = [job.started_at for job in under_way]
    fates.planned_finish_at[rows] = [job.planned_finish_at for job in under_way]
    pool.rows = rows
    pool.plans = cut_stored([job.plan for job in under_way], 0.0, 0.0)
    pool.addresses = np.array([address for job in under_way for address in job.addresses], dtype=np.int64)
    pool.offsets = np.cumsum([0, *(len(job.addresses) for job in under_way)], dtype=np.int64)
    if isinstance(pool, SharedPool):
        _begin_on_loan(pool, under_way, on_loan)
    for row, job in enumerate(under_way):
        gpus = len(job.addresses)
        rate = pool.rate_now(row) if isinstance(pool, SharedPool) else pool.tables.rate(row, gpus)
        jobs.take_gpus(row, gpus, rate, job.pause_left_seconds, 0.0)
        if gpus:
            simulation.recorder.allocation(0.0, row, gpus)
    jobs.forecast_finish(rows, pool.number, 0.0)
    pool.wake_at = 0.0


def _begin_on_loan(pool: SharedPool, under_way: Sequence[UnderWay], on_loan: int) -> None:
    """Lend the first servers, and record which of the jobs' GPUs flexible workers hold."""
    marks = [mark for job in under_way for mark in job.flexible or (False,) * len(job.addresses)]
    pool.flexible = np.array(marks, dtype=np.bool_)
    pool.on_loan[pool.size.servers : pool.size.servers + on_loan] = True
    pool.role = roles_with(pool.on_loan, pool.worker_map())
