"""How many deadlines could be met if the future were known: an upper bound by a linear relaxation.

Jobs may be done in part and on fractions of GPUs, along the concave hull of their curves, without pauses but
the shortest first one. Time is cut into cells; within a cell GPUs may go to anybody whose window touches it,
up to what its part of the cell allows: by Jensen's inequality no schedule gets more out of the same GPU
seconds, so that every choice of cells gives a bound, and finer ones a lower bound. The program has a variable
for the share of each job that is done and one for each segment of its hull in each cell of its window.

What a solver returns is not relied on: its prices of GPU seconds go into the dual function, which bounds the
optimum for any prices that are not negative (weak duality), and that value is the bound.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import floor

import numpy as np
from scipy import sparse  # type: ignore[import-untyped]
from scipy.optimize import linprog  # type: ignore[import-untyped]

from scheduling.core.question.arrays import TIME_TOLERANCE
from scheduling.core.question.snapshot import FloatArray, IntArray

MOST_VARIABLES = 40_000
"""Cells are halved until the program has no more variables than this; one cell is the least."""

ROUNDING = 1e-6


@dataclass(frozen=True)
class Hull:
    """The least concave curve from the origin over the measured points: segments of falling ``slope``.

    ``gpus``: width of each segment. ``slope``: iterations per GPU second along it.
    """

    gpus: FloatArray
    slope: FloatArray


@dataclass(frozen=True)
class JobsToBound:
    """Jobs with deadlines, one a row. Times in seconds, ``work`` in iterations; ``hulls[hull_of[i]]`` is job
    i's.

    ``start_at``: from when a job can make progress (its submission and its shortest pause). ``due_at``: when
    its last iteration must end.
    """

    start_at: FloatArray
    due_at: FloatArray
    work: FloatArray
    hull_of: IntArray
    hulls: tuple[Hull, ...]


@dataclass(frozen=True)
class Relaxation:
    """``bound``: no schedule meets more deadlines. ``possible``: jobs that the empty cluster could do in
    time.

    ``boundaries`` of the cells and ``prices`` of a GPU second in each, in deadlines met.
    """

    bound: float
    possible: int
    boundaries: FloatArray
    prices: FloatArray

    @property
    def deadlines(self) -> int:
        """The bound as a count of jobs."""
        return floor(self.bound + ROUNDING)


def hull_of_points(gpus: IntArray, throughput: FloatArray) -> Hull:
    """The hull of measured points, in any order; points of no throughput are left out."""
    corners = [(0.0, 0.0)]
    for count, rate in sorted(zip(gpus.tolist(), throughput.tolist(), strict=True)):
        if rate <= corners[-1][1]:
            continue  # more GPUs and no faster: the hull stays as it is
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

    ``cells``: of time, about as many submissions and deadlines in each; fewer where the program would become
    too large.
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
    """One row for each segment of a job's hull in each cell of its window, jobs ascending (``job``: among the
    possible).

    ``gpu_seconds``: most that it can use there; ``slope``: iterations for each of them.
    """

    job: IntArray
    cell: IntArray
    gpu_seconds: FloatArray
    slope: FloatArray

    @classmethod
    def of(cls, jobs: JobsToBound, rows: IntArray, boundaries: FloatArray) -> _Pieces:
        job, cell, seconds, slope = [], [], [], []
        for number, row in enumerate(rows.tolist()):
            hull = jobs.hulls[int(jobs.hull_of[row])]
            start, due = float(jobs.start_at[row]), float(jobs.due_at[row]) + TIME_TOLERANCE
            inside = np.minimum(due, boundaries[1:]) - np.maximum(start, boundaries[:-1])
            inside[-1] += max(0.0, due - boundaries[-1])  # what the tolerance adds beyond the last cell
            touched = np.flatnonzero(inside > 0.0)
            job.append(np.full(touched.size * hull.gpus.size, number))
            cell.append(np.repeat(touched, hull.gpus.size))
            seconds.append(np.outer(inside[touched], hull.gpus).ravel())
            slope.append(np.tile(hull.slope, touched.size))
        return cls(*(np.concatenate(column) for column in (job, cell, seconds, slope)))


def _prices(pieces: _Pieces, work: FloatArray, capacity: FloatArray) -> FloatArray:
    """Prices of a GPU second in each cell by the solver; 0 where it finds none."""
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
    # Each variable is the share of its piece that is used, and no more of it than of the job is done.
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
    """What GPU time is worth in all, and what each job gains that pays less for its cheapest pieces than its
    deadline counts."""
    price_of_work = prices[pieces.cell] / pieces.slope
    order = np.lexsort((price_of_work, pieces.job))
    job, amount = pieces.job[order], (pieces.slope * pieces.gpu_seconds)[order]
    before = np.cumsum(amount) - amount
    first = np.searchsorted(job, np.arange(work.size))
    before -= before[first][job]
    used = np.clip(work[job] - before, 0.0, amount)
    cost = np.bincount(job, weights=used * price_of_work[order], minlength=work.size)
    return float(prices @ capacity + np.maximum(0.0, 1.0 - cost).sum())
