"""Room that promised jobs keep for a reclaim: borrowed GPUs never back a promise (design section 4; decision
0015).

A promised job may grow onto borrowed servers of its own kind of GPU with flexible workers. When these go back
it pauses, at any moment and without being asked. So as long as it holds borrowed GPUs its plan on owned
servers also bears that pause, and it grows only where the plan bears the pause of growing too.
"""

from __future__ import annotations

from math import inf

import numpy as np

from scheduling.core.kernels import kernel
from scheduling.core.plans.charging import charged_finish
from scheduling.core.question.arrays import TIME_TOLERANCE, BoolArray, JobArrays, Plans
from scheduling.core.question.snapshot import FloatArray, IntArray

GROW_AND_SHRINK = 2
"""Pauses of a job that grows onto borrowed servers and must leave them at once."""


def with_reclaim_room(jobs: JobArrays, rows: BoolArray, pauses: int = 1) -> JobArrays:
    """The jobs, where those of ``rows`` have so much more work as they could do during so many pauses.

    As work rather than as a pause: a pause of the plan's own would swallow it.
    """
    work = jobs.work.copy()
    work[: rows.size] += np.where(rows, pauses * _lost_to_a_pause(jobs)[: rows.size], 0.0)
    return jobs._replace(work=work)


def bears_growth(jobs: JobArrays, plans: Plans, latest: FloatArray, rows: IntArray) -> BoolArray:
    """Which jobs of ``rows`` are in time by their plans though they grow and must shrink again at once.

    ``latest``: when each job's last iteration must end, in seconds from now. ``plans``: with their finish as
    charged.
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
    in_time = np.zeros(rows.size, dtype=np.bool_)
    nothing = np.zeros(0)
    for position in range(rows.size):
        row = rows[position]
        plain, _ = charged_finish(jobs, plans, row, nothing, nothing)
        if plain == inf:
            continue
        # What moves will cost the plan comes on top: its finish says how much that is.
        moves = max(0.0, plans.finish[row] - plain)
        later, _ = charged_finish(longer, plans, row, nothing, nothing)
        in_time[position] = later + moves <= latest[row] + TIME_TOLERANCE
    return in_time
