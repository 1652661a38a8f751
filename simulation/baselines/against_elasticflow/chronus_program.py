"""Chronus's 0/1 program, solved by HiGHS: which jobs occupy the next lease.

Leases between two deadlines are alike, so the program has one interval for them with a count for each job.
This is equivalent to the program over single leases with far fewer variables. Its solution is used only if
the leases after the first can be packed.
"""

from __future__ import annotations

import numpy as np

from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import IntArray

MOST_JOBS = 64
"""Accepted jobs up to which the program is solved; with more, the packer decides."""

MOST_NODES = 200
"""Nodes of the search tree. A limit on work, not on time: the same question has the same answer on any
machine."""


def first_lease(
    sizes: IntArray, needed: IntArray, until_due: IntArray, gpus: int, *, most_gpus: bool
) -> BoolArray | None:
    """Jobs that occupy the first lease such that each still gets ``needed`` leases of its ``until_due``.

    ``most_gpus``: use as many GPUs in the first lease as possible, else as few. None if the program has no
    solution, or found none within the limit on work.
    """
    # The import takes half a second, and only Chronus needs it.
    from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
    from scipy.sparse import coo_array  # type: ignore[import-untyped]

    jobs = sizes.size
    ends = np.unique(until_due[until_due > 1])
    lengths = np.diff(np.concatenate(([1], ends)))
    job, interval = np.nonzero(until_due[:, None] >= ends[None, :])
    variables = jobs + job.size
    column = jobs + np.arange(job.size)
    upper = np.concatenate((until_due > 0, np.minimum(lengths[interval], needed[job]))).astype(np.float64)
    enough = coo_array(
        (
            np.ones(variables),
            (np.concatenate((np.arange(jobs), job)), np.concatenate((np.arange(jobs), column))),
        ),
        shape=(jobs, variables),
    ).tocsr()
    fitting = coo_array(
        (
            np.concatenate((sizes, sizes[job])).astype(np.float64),
            (
                np.concatenate((np.zeros(jobs, dtype=np.int64), 1 + interval)),
                np.concatenate((np.arange(jobs), column)),
            ),
        ),
        shape=(1 + ends.size, variables),
    ).tocsr()
    value = np.zeros(variables)
    value[:jobs] = -sizes if most_gpus else sizes
    solution = milp(
        value,
        integrality=np.ones(variables),
        bounds=Bounds(0.0, upper),
        constraints=[
            LinearConstraint(enough, needed, needed),
            LinearConstraint(fitting, -np.inf, gpus * np.concatenate(([1], lengths))),
        ],
        options={"node_limit": MOST_NODES},
    )
    if solution.x is None:
        return None
    chosen: BoolArray = solution.x[:jobs] > 0.5
    return chosen
