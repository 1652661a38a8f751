"""An upper bound of the deadlines that any schedule meets, even with a known future: a linear relaxation.

In the relaxation a job may be done in part and on fractions of GPUs, along the concave hull of its scaling
curve. It pays no pause but its shortest first one. Time is cut into cells. In each cell a job may use the
GPU seconds of the part of the cell inside its window. By Jensen's inequality no schedule gets more
iterations out of the same GPU seconds, so every choice of cells gives a bound, and finer cells a tighter one.
The program has one variable for the share of each job that is done, and one for each segment of a job's hull
in each cell of its window.

The bound does not depend on the accuracy of the solver. The solver's prices of GPU seconds go into the dual
function, whose value bounds the optimum for any prices that are not negative (weak duality).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

import numpy as np

from scheduling.core.question.arrays import TIME_TOLERANCE
from scheduling.core.question.snapshot import FloatArray, IntArray

MOST_VARIABLES = 40_000
"""The number of cells is halved until the program has at most this many variables, or one cell."""

ROUNDING = 1e-6
"""Tolerance when the bound is rounded down to whole jobs."""


@dataclass(frozen=True)
class Hull:
    """The concave hull of a scaling curve, as segments from the origin with falling slope."""

    #: Width of each segment, in GPUs.
    gpus: FloatArray
    #: Iterations per GPU second along each segment.
    slope: FloatArray


@dataclass(frozen=True)
class JobsToBound:
    """Jobs with deadlines. Row i of each array is job i."""

    #: When the job can first make progress, in seconds: its submission plus its shortest pause.
    start_at: FloatArray
    #: When its last iteration must end, in seconds.
    due_at: FloatArray
    #: Iterations.
    work: FloatArray
    #: Index of the job's hull in ``hulls``.
    hull_of: IntArray
    #: The hulls; several jobs may share one.
    hulls: tuple[Hull, ...]


@dataclass(frozen=True)
class Relaxation:
    """The bound and what it rests on."""

    #: No schedule meets more deadlines than this.
    bound: float
    #: Number of jobs that would meet their deadline on an empty cluster.
    possible: int
    #: Boundaries of the cells, in seconds; one more than there are cells.
    boundaries: FloatArray
    #: Price of a GPU second in each cell, in deadlines met.
    prices: FloatArray

    @property
    def deadlines(self) -> int:
        """The bound rounded down to a whole number of jobs."""
        return floor(self.bound + ROUNDING)


def hull_of_points(gpus: IntArray, throughput: FloatArray) -> Hull:
    """The concave hull of measured points (GPUs, iterations per second), in any order.

    A point without throughput is left out.
    """
    corners = [(0.0, 0.0)]
    for count, rate in sorted(zip(gpus.tolist(), throughput.tolist(), strict=True)):
        if rate <= corners[-1][1]:
            continue  # more GPUs but not faster: the point lies under the hull
        while len(corners) > 1 and _slope(corners[-2], corners[-1]) <= _slope(corners[-2], (count, rate)):
            corners.pop()
        corners.append((float(count), float(rate)))
    points = np.array(corners)
    widths = np.diff(points[:, 0])
    return Hull(widths, np.diff(points[:, 1]) / widths)


def _slope(one: tuple[float, float], other: tuple[float, float]) -> float:
    return (other[1] - one[1]) / (other[0] - one[0])


def on_time_bound(jobs: JobsToBound, gpus: int, *, cells: int = 64) -> Relaxation:
    """An upper bound of the deadlines that any schedule meets on ``gpus`` GPUs.

    ``cells``: the number of time cells, each with about as many submissions and deadlines. It is halved while
    the program is too large (`MOST_VARIABLES`).
    """
    possible = np.array([row for row in range(jobs.work.size) if _is_possible(jobs, row)], dtype=np.int64)
    if not possible.size:
        return Relaxation(0.0, 0, np.zeros(0), np.zeros(0))
    events = np.concatenate((jobs.start_at[possible], jobs.due_at[possible]))
    while True:
        boundaries = np.unique(np.quantile(events, np.linspace(0.0, 1.0, cells + 1)))
        pieces = _Pieces.of(jobs, possible, boundaries)
        if cells <= 1 or pieces.job.size <= MOST_VARIABLES:
            break
        cells //= 2
    capacity = gpus * np.diff(boundaries)
    prices = _prices(pieces, jobs.work[possible], capacity)
    bound = _dual_value(pieces, jobs.work[possible], capacity, prices)
    return Relaxation(min(bound, float(possible.size)), int(possible.size), boundaries, prices)


def _is_possible(jobs: JobsToBound, row: int) -> bool:
    hull = jobs.hulls[int(jobs.hull_of[row])]
    most = float((hull.gpus * hull.slope).sum()) * (jobs.due_at[row] - jobs.start_at[row] + TIME_TOLERANCE)
    return bool(jobs.due_at[row] > jobs.start_at[row] and most >= jobs.work[row])


@dataclass(frozen=True)
class _Pieces:
    """One row for each segment of a job's hull in each cell of its window, by ascending job."""

    #: Number of the job among the possible ones.
    job: IntArray
    #: Number of the cell.
    cell: IntArray
    #: Most GPU seconds that the segment can use in the cell.
    gpu_seconds: FloatArray
    #: Iterations per GPU second.
    slope: FloatArray

    @classmethod
    def of(cls, jobs: JobsToBound, rows: IntArray, boundaries: FloatArray) -> _Pieces:
        job, cell, seconds, slope = [], [], [], []
        for number, row in enumerate(rows.tolist()):
            hull = jobs.hulls[int(jobs.hull_of[row])]
            start, due = float(jobs.start_at[row]), float(jobs.due_at[row]) + TIME_TOLERANCE
            inside = np.minimum(due, boundaries[1:]) - np.maximum(start, boundaries[:-1])
            inside[-1] += max(0.0, due - boundaries[-1])  # the tolerance reaches beyond the last cell
            touched = np.flatnonzero(inside > 0.0)
            job.append(np.full(touched.size * hull.gpus.size, number))
            cell.append(np.repeat(touched, hull.gpus.size))
            seconds.append(np.outer(inside[touched], hull.gpus).ravel())
            slope.append(np.tile(hull.slope, touched.size))
        return cls(*(np.concatenate(column) for column in (job, cell, seconds, slope)))


def _prices(pieces: _Pieces, work: FloatArray, capacity: FloatArray) -> FloatArray:
    """The solver's price of a GPU second in each cell, in deadlines met; all 0 if the solver fails."""
    # The import takes half a second, and only bounds need it.
    from scipy import sparse  # type: ignore[import-untyped]
    from scipy.optimize import linprog  # type: ignore[import-untyped]

    count, size = work.size, pieces.job.size
    columns = count + np.arange(size)
    done = pieces.slope * pieces.gpu_seconds / work[pieces.job]
    enough = sparse.coo_matrix(
        (np.concatenate((np.ones(count), -done)),
         (np.concatenate((np.arange(count), pieces.job)), np.concatenate((np.arange(count), columns)))),
        shape=(count, count + size),
    )  # fmt: skip
    within = sparse.coo_matrix(
        (pieces.gpu_seconds / capacity[pieces.cell], (pieces.cell, columns)),
        shape=(capacity.size, count + size),
    )
    # Each variable is the share of its piece that is used; at most the share of the job that is done.
    together = sparse.coo_matrix(
        (np.concatenate((np.ones(size), -np.ones(size))),
         (np.concatenate((np.arange(size), np.arange(size))), np.concatenate((columns, pieces.job)))),
        shape=(size, count + size),
    )  # fmt: skip
    solved = linprog(
        np.concatenate((-np.ones(count), np.zeros(size))),
        A_ub=sparse.vstack((within, enough, together), format="csr"),
        b_ub=np.concatenate((np.ones(capacity.size), np.zeros(count + size))),
        bounds=(0.0, 1.0),
        method="highs-ipm",
    )
    if solved.status != 0:
        return np.zeros(capacity.size)
    prices: FloatArray = np.maximum(0.0, -solved.ineqlin.marginals[: capacity.size]) / capacity
    return prices


def _dual_value(pieces: _Pieces, work: FloatArray, capacity: FloatArray, prices: FloatArray) -> float:
    """The dual function: the value of all GPU seconds, plus each job's gain.

    The gain is 1, the worth of a met deadline, less the price of the job's cheapest pieces, and at least 0.
    """
    price_of_work = prices[pieces.cell] / pieces.slope
    order = np.lexsort((price_of_work, pieces.job))
    job, amount = pieces.job[order], (pieces.slope * pieces.gpu_seconds)[order]
    before = np.cumsum(amount) - amount
    first = np.searchsorted(job, np.arange(work.size))
    before -= before[first][job]
    used = np.clip(work[job] - before, 0.0, amount)
    cost = np.bincount(job, weights=used * price_of_work[order], minlength=work.size)
    return float(prices @ capacity + np.maximum(0.0, 1.0 - cost).sum())
