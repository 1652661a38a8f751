"""Room for a reclaim in promised plans: borrowed GPUs never back a promise (design section 4; decision 0015).

A promised job may grow with flexible workers onto borrowed servers of its own kind of GPU. A reclaim pauses
it at any moment. So while it holds borrowed GPUs, its plan on owned servers must also bear that pause. It
grows only if the plan bears the pause of growing as well.
"""

from __future__ import annotations

from math import inf

import numpy as np

from kernels.compiling import kernel
from scheduling.core.plans.charging import charged_finish
from scheduling.core.question.arrays import TIME_TOLERANCE, BoolArray, JobArrays, Plans
from scheduling.core.question.snapshot import FloatArray, IntArray

GROW_AND_SHRINK = 2
"""Pauses of a job that grows onto borrowed servers and must leave them at once."""


def with_reclaim_room(jobs: JobArrays, rows: BoolArray, pauses: int = 1) -> JobArrays:
    """The jobs, where each of ``rows`` has more work: the iterations it could do during ``pauses`` pauses.

    Work is added and not a pause, because a pause of the plan itself could overlap an added one.
    """
    work = jobs.work.copy()
    work[: rows.size] += np.where(rows, pauses * _lost_to_a_pause(jobs)[: rows.size], 0.0)
    return jobs._replace(work=work)


def bears_growth(jobs: JobArrays, plans: Plans, latest: FloatArray, rows: IntArray) -> BoolArray:
    """Marks jobs of ``rows`` whose plans are in time even if they grow and must shrink again at once.

    ``latest``: when each job's last iteration must end, in seconds from now. The ``finish`` of ``plans``
    includes the pauses charged.
    """
    longer = with_reclaim_room(jobs, np.ones(jobs.work.size, dtype=np.bool_), GROW_AND_SHRINK)
    bears: BoolArray = _in_time(jobs, longer, plans, latest, rows)
    return bears


def _lost_to_a_pause(jobs: JobArrays) -> FloatArray:
    """Iterations that each job does on its fastest level during its longest pause."""
    lost: FloatArray = jobs.pause.max(axis=1, initial=0.0) * jobs.throughput.max(axis=1, initial=0.0)
    return lost


@kernel
def _in_time(
    jobs: JobArrays, longer: JobArrays, plans: Plans, latest: FloatArray, rows: IntArray
) -> BoolArray:
    """Marks jobs of ``rows`` that are in time by their plans with the work of ``longer``."""
    in_time = np.zeros(rows.size, dtype=np.bool_)
    nothing = np.zeros(0)
    for position in range(rows.size):
        row = rows[position]
        plain, _ = charged_finish(jobs, plans, row, nothing, nothing)
        if plain == inf:
            continue
        # The stored finish includes the pauses of forced moves; the difference is what they cost.
        moves = max(0.0, plans.finish[row] - plain)
        later, _ = charged_finish(longer, plans, row, nothing, nothing)
        in_time[position] = later + moves <= latest[row] + TIME_TOLERANCE
    return in_time
