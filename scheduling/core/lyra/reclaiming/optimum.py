"""The fewest preemptions there can be, by a 0/1 program (Lyra section 3.4; spec 2.4.4).

Minimum k-union: choose so many servers that as few jobs as possible have a base worker on one of them.
Without the number the program is integral, so its relaxation is nearly tight; with it, it is NP-hard. Solved
by HiGHS.
"""

from __future__ import annotations

from collections.abc import Sequence
from operator import itemgetter
from typing import Any, NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
from scipy.sparse import coo_array, csr_array  # type: ignore[import-untyped]

from scheduling.core.lyra.reclaiming.question import Layout, consequences
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray

HALF = 0.5
SOLVED, INFEASIBLE = 0, 2
"""Statuses, as scipy gives them, with which a question is answered for certain; with others the search ended
early."""


class Optimum(NamedTuple):
    """Servers chosen, ascending; a proved lower ``bound`` on preemptions; whether the limit on nodes was hit
    before the answer was certain, in the number of jobs or in the GPUs freed elsewhere."""

    server: IntArray
    bound: int
    limit_hit: bool


class _Program(NamedTuple):
    """Columns: servers, then jobs on several of them, then pairs with flexible workers only.

    ``rows @ columns >= 0``: a job is preempted when one of its servers goes back; a pair counts only where
    its server goes back and its job is preempted. ``jobs``, ``excess``: by column, preemptions and GPUs freed
    on servers that stay.
    """

    rows: csr_array
    jobs: FloatArray
    excess: FloatArray


def fewest_preemptions(
    layout: Layout, allowed: BoolArray, already: IntArray, starts: Sequence[IntArray], most_nodes: int
) -> Optimum:
    """Choose among the ``allowed`` servers as many as each of ``starts`` has, so that the fewest jobs are
    preempted, then the fewest GPUs freed on servers that stay.

    Every allowed server hosts a base worker. ``already``: servers that go back before. ``starts``: choices to
    improve on; the best of them comes back where nothing better is found. ``most_nodes``: branch-and-bound
    nodes for each of the two questions; a limit on work, so that the same question has the same answer
    anywhere.
    """
    number = starts[0].size
    single = _of_one_job(layout, allowed, already, number)
    if single is not None:
        return Optimum(single, 1, False)
    best, value = min(((start, _value(layout, already, start)) for start in starts), key=itemgetter(1))
    servers = np.flatnonzero(allowed)
    program = _program(layout, servers, already)
    # No single job is enough.
    bound, limit_hit = 2, False
    if value[0] > bound:
        found = _solve(program, servers, number, program.jobs, value[0] - 1, most_nodes)
        best, value = _better(layout, already, best, value, found.chosen)
        limit_hit = found.limit_hit
        bound = min(value[0], max(found.bound, bound)) if limit_hit else value[0]
    if value[1] > 0:
        found = _solve(program, servers, number, program.excess, value[0], most_nodes)
        best, value = _better(layout, already, best, value, found.chosen)
        limit_hit |= found.limit_hit
    return Optimum(np.sort(best), bound, limit_hit)


def _of_one_job(layout: Layout, allowed: BoolArray, already: IntArray, number: int) -> IntArray | None:
    """Servers that go back if a single job is preempted, ascending; None where no job is alone on so many.

    Most small reclaims are of this kind, and need no program. Among several such jobs it is the one that
    leaves the fewest free GPUs behind.
    """
    pairs = np.flatnonzero((layout.base > 0) & allowed[layout.server] & (layout.hosted[layout.server] == 1))
    pairs = pairs[np.lexsort((-layout.gpus[pairs], layout.job[pairs]))]
    of_job = layout.job[pairs]
    largest = pairs[np.arange(pairs.size) - np.searchsorted(of_job, of_job) < number]
    jobs, count = np.unique(layout.job[largest], return_counts=True)
    jobs = jobs[count == number]
    if not jobs.size:
        return None
    goes = np.bincount(layout.job[largest], weights=layout.gpus[largest], minlength=layout.spread.size)
    job = jobs[np.argmin(_staying_gpus(layout, already)[jobs] - goes[jobs])]
    return np.sort(layout.server[largest[layout.job[largest] == job]])


def _staying_gpus(layout: Layout, already: IntArray) -> FloatArray:
    """GPUs of each job on usable servers that do not go back before."""
    stays = layout.usable.copy()
    stays[already] = False
    gpus = np.where(stays[layout.server], layout.gpus, 0)
    return np.bincount(layout.job, weights=gpus, minlength=layout.spread.size).astype(np.float64)


def _value(layout: Layout, already: IntArray, chosen: IntArray) -> tuple[int, int]:
    """Jobs preempted, and their GPUs on servers that stay."""
    done = consequences(layout, np.concatenate((already, chosen)))
    return done.preempted.size, done.collateral_gpus


def _better(
    layout: Layout, already: IntArray, best: IntArray, value: tuple[int, int], other: IntArray | None
) -> tuple[IntArray, tuple[int, int]]:
    """The better of the best choice so far and another, with what it does."""
    if other is None:
        return best, value
    others = _value(layout, already, other)
    return (other, others) if others < value else (best, value)


def _program(layout: Layout, servers: IntArray, already: IntArray) -> _Program:
    """The question as a matrix; jobs on a single server are part of that server's column."""
    column_of = np.full(layout.usable.size, -1)
    column_of[servers] = np.arange(servers.size)
    freed = _staying_gpus(layout, already)
    here = column_of[layout.server] >= 0
    bound = np.flatnonzero(here & (layout.base > 0))
    alone = bound[layout.spread[layout.job[bound]] == 1]
    spanning = bound[layout.spread[layout.job[bound]] > 1]
    jobs, of_job = np.unique(layout.job[spanning], return_inverse=True)
    loose = np.flatnonzero(here & (layout.base == 0) & (layout.spread[layout.job] > 0))
    job_column = np.full(layout.spread.size, -1)
    job_column[jobs] = servers.size + np.arange(jobs.size)
    # A job on a single server is preempted exactly when that server goes back.
    job_column[layout.job[alone]] = column_of[layout.server[alone]]
    loose_column = servers.size + jobs.size + np.arange(loose.size)
    columns = servers.size + jobs.size + loose.size

    preempts = np.zeros(columns)
    excess = np.zeros(columns)
    np.add.at(preempts, column_of[layout.server[alone]], 1.0)
    np.add.at(excess, column_of[layout.server[alone]], freed[layout.job[alone]])
    np.subtract.at(excess, column_of[layout.server[bound]], layout.gpus[bound])
    preempts[servers.size : servers.size + jobs.size] = 1.0
    excess[servers.size : servers.size + jobs.size] = freed[jobs]
    excess[loose_column] = -layout.gpus[loose]

    larger = np.concatenate(
        (servers.size + of_job, column_of[layout.server[loose]], job_column[layout.job[loose]])
    )
    smaller = np.concatenate((column_of[layout.server[spanning]], loose_column, loose_column))
    row = np.arange(larger.size)
    matrix = coo_array(
        (
            np.repeat([1.0, -1.0], larger.size),
            (np.concatenate((row, row)), np.concatenate((larger, smaller))),
        ),
        shape=(larger.size, columns),
    )
    return _Program(matrix.tocsr(), preempts, excess)


class _Solution(NamedTuple):
    """Servers of the best choice found, if any; a lower bound of the objective; whether the search was cut
    short."""

    chosen: IntArray | None
    bound: int
    limit_hit: bool


def _solve(
    program: _Program,
    servers: IntArray,
    number: int,
    objective: FloatArray,
    jobs_at_most: int,
    most_nodes: int,
) -> _Solution:
    """The least objective with ``number`` servers and at most so many jobs preempted."""
    columns = objective.size
    counting = np.zeros(columns)
    counting[: servers.size] = 1.0
    constraints = [
        LinearConstraint(counting, number, number),
        LinearConstraint(program.jobs, -np.inf, jobs_at_most),
    ]
    if program.rows.shape[0]:
        constraints.append(LinearConstraint(program.rows, 0.0, np.inf))
    answer: Any = milp(
        objective,
        integrality=np.ones(columns),
        bounds=Bounds(0.0, 1.0),
        constraints=constraints,
        options={"node_limit": most_nodes, "mip_rel_gap": 0.0},
    )
    chosen = None if answer.x is None else servers[answer.x[: servers.size] > HALF]
    dual = answer.mip_dual_bound
    bound = int(np.ceil(dual - 1e-6)) if dual is not None and np.isfinite(dual) else 0
    return _Solution(chosen, bound, answer.status not in (SOLVED, INFEASIBLE))
