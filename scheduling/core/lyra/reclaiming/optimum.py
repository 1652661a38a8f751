"""The fewest preemptions for a reclaim, by a 0/1 program (Lyra section 3.4).

The problem is minimum k-union: choose k servers such that the fewest jobs have a base worker on one of them.
Without the constraint on k the program is integral, so the relaxation is nearly tight; with it the problem is
NP-hard. HiGHS solves it.
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
    """The servers chosen and how good the choice is."""

    #: Rows of the servers, ascending.
    server: IntArray
    #: A proved lower bound on the number of preemptions.
    bound: int
    #: Whether a search reached its node limit before its answer was certain.
    limit_hit: bool


class _Program(NamedTuple):
    """The 0/1 program. Columns: servers, jobs on several servers, then pairs with only flexible workers."""

    #: Constraints ``rows @ columns >= 0``: a job is preempted when one of its servers is returned; a pair
    #: counts only where its server is returned and its job preempted.
    rows: csr_array
    #: Preemptions of each column.
    jobs: FloatArray
    #: GPUs that each column frees on servers that stay.
    excess: FloatArray


def fewest_preemptions(
    layout: Layout, allowed: BoolArray, already: IntArray, starts: Sequence[IntArray], most_nodes: int
) -> Optimum:
    """Choose servers such that the fewest jobs are preempted, then the fewest GPUs are freed on servers that
    stay.

    Chooses among the ``allowed`` servers, each of which hosts a base worker, as many as each of ``starts``
    has. ``already`` marks servers that are returned before. ``starts`` are choices to improve on; the best of
    them is returned where nothing better is found. ``most_nodes`` limits the branch-and-bound nodes of each
    of the two searches: a limit on work, so that the same question has the same answer on any machine.
    """
    number = starts[0].size
    single = _of_one_job(layout, allowed, already, number)
    if single is not None:
        return Optimum(single, 1, False)
    best, value = min(((start, _value(layout, already, start)) for start in starts), key=itemgetter(1))
    servers = np.flatnonzero(allowed)
    program = _program(layout, servers, already)
    # Preempting a single job is not enough, so at least two are preempted.
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
    """Servers that preempting a single job empties, ascending; None where no job alone is enough.

    Most small reclaims have such an answer and need no program. Among several such jobs, the one that leaves
    the fewest free GPUs on other servers is chosen.
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
    """GPUs of each job on usable servers that are not returned already."""
    stays = layout.usable.copy()
    stays[already] = False
    gpus = np.where(stays[layout.server], layout.gpus, 0)
    return np.bincount(layout.job, weights=gpus, minlength=layout.spread.size).astype(np.float64)


def _value(layout: Layout, already: IntArray, chosen: IntArray) -> tuple[int, int]:
    """Number of preempted jobs, and their GPUs on servers that stay."""
    done = consequences(layout, np.concatenate((already, chosen)))
    return done.preempted.size, done.collateral_gpus


def _better(
    layout: Layout, already: IntArray, best: IntArray, value: tuple[int, int], other: IntArray | None
) -> tuple[IntArray, tuple[int, int]]:
    """The better of the best choice so far and another one, with its value."""
    if other is None:
        return best, value
    others = _value(layout, already, other)
    return (other, others) if others < value else (best, value)


def _program(layout: Layout, servers: IntArray, already: IntArray) -> _Program:
    """Build the program; jobs on a single server are part of that server's column."""
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
    # A job on a single server is preempted exactly when that server is returned.
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
    """The result of one search."""

    #: Servers of the best choice found; None if none was found.
    chosen: IntArray | None
    #: A lower bound of the objective.
    bound: int
    #: Whether the search reached its node limit.
    limit_hit: bool


def _solve(
    program: _Program,
    servers: IntArray,
    number: int,
    objective: FloatArray,
    jobs_at_most: int,
    most_nodes: int,
) -> _Solution:
    """Minimise the objective with ``number`` servers and at most ``jobs_at_most`` preempted jobs."""
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
