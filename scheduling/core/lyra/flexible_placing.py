"""Placement of flexible workers: first where they were before, then by best fit (Lyra 3.5.3)."""

from __future__ import annotations

import numpy as np

from kernels.compiling import kernel
from scheduling.core.lyra.base_and_flexible import Demands
from scheduling.core.lyra.flexible_demands import extra_counted_from
from scheduling.core.lyra.worker_placement import Grouping, Kept, Room, place_flexible, return_flexible
from scheduling.core.question.snapshot import IntArray


@kernel
def _all_counted_from(demands: Demands, base: IntArray, jobs: IntArray, kind: int) -> IntArray:
    """`extra_counted_from` for ``jobs``, in an array over all jobs."""
    counted = np.zeros(base.shape[1], dtype=np.int64)
    for job in jobs:
        counted[job] = extra_counted_from(demands, base, job, kind)
    return counted


def place_extra(
    room: Room,
    kept: Kept,
    demands: Demands,
    base: IntArray,
    wanted: IntArray,
    kind: int,
    grouping: Grouping,
) -> tuple[IntArray, IntArray]:
    """Place ``wanted`` extra workers of each job on one kind of servers; drop those that do not fit.

    Fills ``kept``. Returns the placements of the workers that move or are new, and the extra workers of each
    job.
    """
    jobs = np.flatnonzero(wanted)
    got = return_flexible(room, kept, demands.gpus_per_worker, jobs, kind, wanted, grouping)
    missing = jobs[got[jobs] < wanted[jobs]]
    if missing.size == 0:
        return np.zeros((0, 4), dtype=np.int64), got
    gpus = demands.gpus_per_worker[missing]
    missing = missing[np.lexsort((missing, -wanted[missing] * gpus, -gpus))]
    beyond = _all_counted_from(demands, base, missing, kind)
    placed, freed = place_flexible(room, kept, demands, missing, kind, wanted, got, beyond, grouping)
    if freed:
        again, _ = place_flexible(room, kept, demands, missing, kind, wanted, got, beyond, grouping)
        placed = np.concatenate((placed, again))
    return placed, got
