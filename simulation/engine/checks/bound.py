"""How many deadlines of a run any schedule could meet with knowledge of the future, for reports."""

from __future__ import annotations

import numpy as np

from scheduling.core.elasticflow.relaxation import (
    Hull,
    JobsToBound,
    Relaxation,
    hull_of_points,
    on_time_bound,
)
from scheduling.core.question.columns import SLO
from simulation.engine.world.world import World
from simulation.outcome import ON_TIME_TOLERANCE_SECONDS


def deadlines_bound(world: World, *, cells: int = 64) -> Relaxation | None:
    """Return the bound for the run's ``slo`` jobs at their real speeds, computed before the run begins.

    None if GPUs are of several types or may be borrowed. With lost servers it remains a valid bound.
    """
    if len(world.pools) != 1 or world.settings.sharing is not None:
        return None
    pool, jobs = world.pools[0], world.jobs
    measured = pool.tables.measured
    rows = np.flatnonzero((jobs.service_class == SLO) & np.isfinite(jobs.deadline_at))
    usable = measured.levels[rows] <= pool.size.gpus
    hulls: list[Hull] = []
    hull_of: list[int] = []
    known: dict[tuple[int, float], int] = {}
    shortest_pause = np.where(usable, measured.pause[rows], np.inf).min(axis=1, initial=np.inf)
    for position, row in enumerate(rows.tolist()):
        # Jobs of one model share a hull unless their real speed departs from the measured one.
        key = (int(world.workload.profile_of[row]), float(pool.tables.true_factor[row]))
        if key not in known:
            known[key] = len(hulls)
            some = usable[position]
            speeds = measured.throughput[row, some] * key[1]
            hulls.append(hull_of_points(measured.levels[row, some], speeds))
        hull_of.append(known[key])
    under_way = rows < world.jobs_under_way
    start_at = np.maximum(0.0, jobs.submitted_at[rows]) if under_way.any() else jobs.submitted_at[rows]
    pause = np.where(under_way | ~np.isfinite(shortest_pause), 0.0, shortest_pause)
    return on_time_bound(
        JobsToBound(
            start_at + pause,
            jobs.deadline_at[rows] + ON_TIME_TOLERANCE_SECONDS,
            np.maximum(jobs.remaining[rows], 1e-9),
            np.array(hull_of, dtype=np.int64),
            tuple(hulls),
        ),
        pool.size.gpus,
        cells=cells,
    )
