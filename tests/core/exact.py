"""Exact answers on small instances: whether some division of the GPUs over time lets every job meet its
deadline.

A job's choices are paths through slots: in each slot it holds one of its levels or nothing, a change of level
costs its pause, GPUs are kept to the end of the slot in which the final weights are stored, and a deadline
may lie inside a slot. A 0/1 program finds a path per job such that no slot needs more GPUs than exist.
Placement is ignored: sizes that are powers of two always fit into aligned blocks, at the price of moves that
are not charged here. Infeasible here therefore means infeasible for the core. HiGHS solves the program on one
thread within a limit on nodes, not on seconds.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from enum import Enum
from itertools import product
from math import ceil, inf
from typing import NamedTuple

import numpy as np
from scipy.optimize import Bounds, LinearConstraint, milp  # type: ignore[import-untyped]
from scipy.sparse import coo_array  # type: ignore[import-untyped]

from scheduling.core.problem.problem import Problem
from scheduling.core.question.snapshot import JobSnapshot

TOLERANCE_SECONDS = 4e-6
"""The core treats instants within a few of its time tolerances as equal; the exact answer must not be
stricter."""

MOST_NODES = 20_000
"""Limit on branch-and-bound nodes for one question."""


class Feasibility(Enum):
    """The answer to the exact question."""

    FEASIBLE = "feasible"
    INFEASIBLE = "infeasible"
    UNDECIDED = "undecided"


@dataclass(frozen=True)
class ExactJob:
    """A job from the next slot on. ``due``: seconds until the last iteration must end; ``held``: GPUs that
    the job holds now."""

    levels: tuple[int, ...]
    throughput: tuple[float, ...]
    pause: tuple[float, ...]
    work: float
    due: float
    finishing: float = 0.0
    held: int = 0
    pause_left: float = 0.0

    @property
    def pauses(self) -> bool:
        """Whether the job has any pause."""
        return self.pause_left > 0 or any(self.pause)


@dataclass(frozen=True)
class ExactAnswer:
    """The answer. ``sizes[i, t]``: GPUs of job i in slot t, if feasible."""

    feasibility: Feasibility
    sizes: np.ndarray = field(default_factory=lambda: np.zeros((0, 0), dtype=np.int64))


def job_from(snapshot: JobSnapshot, now: float) -> ExactJob:
    """Return a job as it stands at ``now``, the beginning of a slot."""
    curve = snapshot.curve
    return ExactJob(
        levels=tuple(curve.levels.tolist()),
        throughput=tuple(curve.throughput.tolist()),
        pause=tuple(curve.pause_seconds.tolist()),
        work=snapshot.remaining_iterations,
        due=snapshot.deadline_at - snapshot.finishing_seconds - now,
        finishing=snapshot.finishing_seconds,
        held=snapshot.gpus_now,
        pause_left=snapshot.pause_left_seconds,
    )


def job_of(problem: Problem, row: int) -> ExactJob:
    """Return a row of a decision's problem, as of the beginning of the next slot."""
    jobs = problem.jobs
    count = int(jobs.level_count[row])
    return ExactJob(
        levels=tuple(jobs.levels[row, :count].tolist()),
        throughput=tuple(jobs.throughput[row, :count].tolist()),
        pause=tuple(jobs.pause[row, :count].tolist()),
        work=float(jobs.work[row]),
        due=float(problem.due[row]) - problem.origin,
        finishing=float(jobs.finishing[row]),
        held=int(jobs.gpus[row]),
        pause_left=float(jobs.pause_left[row]),
    )


# The paths of one job ------------------------------------------------------------------------------


class _Arc(NamedTuple):
    """``gpus`` GPUs in slots ``first`` to ``last``; ``gain`` iterations. The head END closes the plan."""

    tail: int
    head: int
    gpus: int
    first: int
    last: int
    gain: float


START, END = 0, -1


def _paths(job: ExactJob, slot: float) -> list[_Arc]:
    """Return all choices of a job as arcs between (slot, GPUs held, pause left), without arcs on no complete
    path."""
    arcs: list[_Arc] = []
    layer = {(job.held, job.pause_left): START}
    numbered = 1
    for number in range(ceil(job.due / slot)):
        following: dict[tuple[int, float], int] = {}
        for (held_gpus, pause_left), tail in layer.items():
            for choice in (-1, *range(len(job.levels))):
                gpus = job.levels[choice] if choice >= 0 else 0
                rate = job.throughput[choice] if choice >= 0 else 0.0
                pause = pause_left
                if gpus != held_gpus:
                    pause = max(pause_left, job.pause[choice]) if gpus else 0.0
                arcs += _last_arcs(job, slot, number, tail, gpus, rate, pause)
                if (number + 1) * slot > job.due:
                    continue
                state = (gpus, round(max(0.0, pause - slot), 9)) if job.pauses else (0, 0.0)
                if state not in following:
                    following[state] = numbered
                    numbered += 1
                arcs.append(_Arc(tail, following[state], gpus, number, number, rate * max(0.0, slot - pause)))
        layer = following
    return _useful(arcs, job.work - TOLERANCE_SECONDS * max(job.throughput))


def _last_arcs(
    job: ExactJob, slot: float, number: int, tail: int, gpus: int, rate: float, pause: float
) -> Iterator[_Arc]:
    """Yield arcs on which the last iteration ends in slot ``number`` and the GPUs are kept until the weights
    are stored."""
    begin = number * slot
    end = min(begin + slot, job.due)
    last = number
    while gpus:
        until = min(end, (last + 1) * slot - job.finishing)
        if until > begin + pause:
            yield _Arc(tail, END, gpus, number, last, rate * (until - begin - pause))
        if until >= end:
            return
        last += 1


def _useful(arcs: list[_Arc], work: float) -> list[_Arc]:
    """Return the arcs on paths from START to END that complete the work."""
    before: dict[int, float] = defaultdict(lambda: -inf, {START: 0.0})
    for arc in arcs:  # tails come in the order of slots
        before[arc.head] = max(before[arc.head], before[arc.tail] + arc.gain)
    after: dict[int, float] = defaultdict(lambda: -inf, {END: 0.0})
    for arc in reversed(arcs):
        after[arc.tail] = max(after[arc.tail], after[arc.head] + arc.gain)
    return [arc for arc in arcs if before[arc.tail] + arc.gain + after[arc.head] >= work]


# All jobs together ---------------------------------------------------------------------------------


def solve(
    jobs: Sequence[ExactJob],
    gpus: int,
    slot: float,
    *,
    least_gpu_time: bool = False,
    most_nodes: int = MOST_NODES,
) -> ExactAnswer:
    """Return whether ``gpus`` GPUs let every job be in time, with sizes per slot if so.

    ``least_gpu_time``: return the sizes with the least GPU time, instead of any feasible sizes.
    """
    paths = [_paths(job, slot) for job in jobs]
    if not all(paths):
        return ExactAnswer(Feasibility.INFEASIBLE)
    if not paths:
        return ExactAnswer(Feasibility.FEASIBLE)
    arcs = [(owner, arc) for owner, path in enumerate(paths) for arc in path]
    slots = 1 + max(arc.last for _, arc in arcs)
    gpu_slots = np.array([arc.gpus * (arc.last - arc.first + 1) for _, arc in arcs], dtype=np.float64)
    result = milp(
        c=gpu_slots if least_gpu_time else np.zeros(len(arcs)),
        constraints=[_flow(arcs), _work(jobs, arcs), _capacity(arcs, slots, gpus)],
        integrality=np.ones(len(arcs)),
        bounds=Bounds(0, 1),
        options={"node_limit": most_nodes},
    )
    if result.x is None:
        feasibility = Feasibility.INFEASIBLE if result.status == 2 else Feasibility.UNDECIDED
        return ExactAnswer(feasibility)
    sizes = np.zeros((len(jobs), slots), dtype=np.int64)
    for (owner, arc), chosen in zip(arcs, result.x, strict=True):
        if chosen > 0.5:
            sizes[owner, arc.first : arc.last + 1] = arc.gpus
    return ExactAnswer(Feasibility.FEASIBLE, sizes)


_OwnedArcs = Sequence[tuple[int, _Arc]]


def _flow(arcs: _OwnedArcs) -> LinearConstraint:
    """Constrain each job to one path: it leaves START once, and leaves each other node as often as it enters
    it."""
    rows: dict[tuple[int, int], int] = {}
    entries = []
    for column, (owner, arc) in enumerate(arcs):
        entries.append((rows.setdefault((owner, arc.tail), len(rows)), column, 1.0))
        if arc.head != END:
            entries.append((rows.setdefault((owner, arc.head), len(rows)), column, -1.0))
    balance = np.zeros(len(rows))
    for (_, node), row in rows.items():
        balance[row] = 1.0 if node == START else 0.0
    return LinearConstraint(_matrix(entries, len(rows), len(arcs)), balance, balance)


def _work(jobs: Sequence[ExactJob], arcs: _OwnedArcs) -> LinearConstraint:
    """Constrain each job to do all its work, scaled to 1 per job.

    A job that must store weights may not complete its work before its last arc, since only that arc holds
    GPUs for storing.
    """
    shares = [(owner, column, arc.gain / jobs[owner].work) for column, (owner, arc) in enumerate(arcs)]
    need = [1 - TOLERANCE_SECONDS * max(job.throughput) / job.work for job in jobs]
    before_last = [
        (len(jobs) + owner, column, share)
        for owner, column, share in shares
        if jobs[owner].finishing > 0 and arcs[column][1].head != END
    ]
    matrix = _matrix(shares + before_last, 2 * len(jobs), len(arcs))
    nothing, anything = np.full(len(jobs), -inf), np.full(len(jobs), inf)
    return LinearConstraint(
        matrix, np.concatenate((need, nothing)), np.concatenate((anything, np.ones(len(jobs))))
    )


def _capacity(arcs: _OwnedArcs, slots: int, gpus: int) -> LinearConstraint:
    entries = [
        (number, column, float(arc.gpus))
        for column, (_, arc) in enumerate(arcs)
        for number in range(arc.first, arc.last + 1)
        if arc.gpus
    ]
    return LinearConstraint(_matrix(entries, slots, len(arcs)), -inf, float(gpus))


def _matrix(entries: list[tuple[int, int, float]], rows: int, columns: int) -> coo_array:
    row, column, value = zip(*entries, strict=True)
    return coo_array((value, (row, column)), shape=(rows, columns)).tocsr()


# Without a solver ----------------------------------------------------------------------------------


def finish_of(job: ExactJob, sizes: Sequence[int], slot: float) -> float:
    """Return when the last iteration ends with these GPUs per slot; infinity if it never ends or weights
    cannot be stored."""
    size_before, pause_left, work = job.held, job.pause_left, job.work
    for number, size in enumerate(sizes):
        if size != size_before:
            pause_left = max(pause_left, job.pause[job.levels.index(size)]) if size else 0.0
            size_before = size
        if size == 0:
            continue
        rate = job.throughput[job.levels.index(size)]
        productive = max(0.0, slot - pause_left)
        if (productive + TOLERANCE_SECONDS) * rate >= work:
            finish = number * slot + pause_left + work / rate
            slot_end = number
            while slot_end < len(sizes) and sizes[slot_end] == size:
                slot_end += 1
            return finish if finish + job.finishing <= slot_end * slot + TOLERANCE_SECONDS else inf
        work -= productive * rate
        pause_left = max(0.0, pause_left - slot)
    return inf


def feasible_by_trying_everything(jobs: Sequence[ExactJob], gpus: int, slot: float) -> bool:
    """Return whether every job can be in time, by enumeration; only for a few jobs over a few slots."""
    slots = max(ceil((job.due + job.finishing) / slot - 1e-9) for job in jobs)
    used: set[tuple[int, ...]] = {(0,) * slots}
    for job in jobs:
        plans = {
            sizes
            for sizes in product((0, *job.levels), repeat=slots)
            if finish_of(job, sizes, slot) <= job.due + TOLERANCE_SECONDS
        }
        used = {
            together
            for before in used
            for sizes in plans
            if max(together := tuple(a + b for a, b in zip(before, sizes, strict=True))) <= gpus
        }
    return bool(used)


def linear_jobs_feasible(jobs: Iterable[tuple[float, float, float]], gpus: int) -> bool:
    """Return whether jobs (iterations, iterations per GPU second, deadline) meet the paper's Theorem 1.

    In deadline order, the GPU time needed so far must fit the GPU time until each deadline.
    """
    needed = 0.0
    for iterations, rate, deadline in sorted(jobs, key=lambda job: job[2]):
        needed += iterations / rate
        if needed > gpus * deadline * (1 + 1e-12):
            return False
    return True
