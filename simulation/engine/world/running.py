"""Progress of jobs between two instants: compiled loops over the jobs of one pool.

Every event evaluates these for every unfinished job. In NumPy each would take a dozen small array operations,
each of them slower than the loop over its few jobs.
"""

from __future__ import annotations

from math import inf
from typing import NamedTuple

import numpy as np

from kernels.compiling import ZERO, kernel, leaf, whole
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray

WAITING, ACTIVE, OVER = whole(0), whole(1), whole(2)
"""Phases: not submitted yet, unfinished, and ended for any reason."""
NO_POSITION = whole(-1)


class Running(NamedTuple):
    """The columns of `JobStates` that change while jobs run. Row i is job i of the workload."""

    #: One of the phases.
    phase: IntArray
    #: Number of the pool that the job is in.
    pool: IntArray
    #: GPUs that it holds.
    gpus: IntArray
    #: True for a job with a promise.
    promised: BoolArray
    #: Iterations per second.
    rate: FloatArray
    #: Iterations left.
    remaining: FloatArray
    #: Seconds left of a pause.
    pause_left: FloatArray
    #: When it ends if nothing changes.
    finish_at: FloatArray
    #: Seconds with GPUs but without progress.
    paused_seconds: FloatArray
    #: GPU seconds held so far.
    attained_gpu_seconds: FloatArray
    #: Seconds without GPUs since its submission.
    waiting_seconds: FloatArray


class Held(NamedTuple):
    """Jobs and GPUs of a pool's unfinished jobs."""

    #: Unfinished jobs.
    jobs: int
    #: Those of them that hold GPUs.
    running: int
    #: GPUs of all of them.
    gpus: int
    #: GPUs of those with a promise.
    promised_gpus: int


@kernel
def asked_about(
    running: Running, rows: IntArray, pool: int, newcomers: IntArray
) -> tuple[IntArray, IntArray, BoolArray]:
    """Merge the unfinished jobs of ``rows`` that are in the pool with the newcomers, ascending.

    ``rows`` are ascending. Returns (the jobs; their positions in ``rows``, -1 for jobs not in it; True for
    newcomers).
    """
    new = np.sort(newcomers)
    asked = np.empty(rows.size + new.size, dtype=np.int64)
    source = np.full(asked.size, NO_POSITION)
    is_new = np.zeros(asked.size, dtype=np.bool_)
    count = 0
    taken = 0
    for position in range(rows.size):
        row = rows[position]
        while taken < new.size and new[taken] < row:
            asked[count] = new[taken]
            is_new[count] = True
            taken += 1
            count += 1
        comes = taken < new.size and new[taken] == row
        if comes or (running.pool[row] == pool and running.phase[row] == ACTIVE):
            asked[count] = row
            source[count] = position
            is_new[count] = comes
            taken += int(comes)
            count += 1
    for late in range(taken, new.size):
        asked[count] = new[late]
        is_new[count] = True
        count += 1
    return asked[:count], source[:count], is_new[:count]


@leaf
def run_on(running: Running, rows: IntArray, pool: int, seconds: float) -> None:
    """Run the jobs of ``rows`` that are in the pool for ``seconds``: progress is rate times time without
    pauses (I9)."""
    for row in rows:
        if running.pool[row] != pool:
            continue
        gpus = running.gpus[row]
        paused = min(running.pause_left[row], seconds)
        productive = seconds - paused if gpus > 0 else 0.0
        running.remaining[row] = max(0.0, running.remaining[row] - running.rate[row] * productive)
        running.pause_left[row] -= paused
        running.attained_gpu_seconds[row] += gpus * seconds
        if gpus > 0:
            running.paused_seconds[row] += paused
        elif running.phase[row] == ACTIVE:
            running.waiting_seconds[row] += seconds


@leaf
def any_ends_by(running: Running, rows: IntArray, pool: int, at: float) -> bool:
    """Return whether an unfinished job of ``rows`` that is in the pool ends at ``at`` or before."""
    for row in rows:
        if running.pool[row] == pool and running.phase[row] == ACTIVE and running.finish_at[row] <= at:
            return True
    return False


@leaf
def forecast_finishes(running: Running, rows: IntArray, pool: int, now: float) -> float:
    """Set ``finish_at`` of each unfinished job of ``rows`` that is in the pool, if nothing changes; return
    the first of these times, infinity if there is none."""
    first = inf
    for row in rows:
        if running.pool[row] == pool and running.phase[row] == ACTIVE:
            finish = inf
            if running.gpus[row] > 0 and running.rate[row] > 0.0:
                finish = now + running.pause_left[row] + running.remaining[row] / running.rate[row]
            running.finish_at[row] = finish
            first = min(first, finish)
    return first


@kernel
def speed_ups_of(running: Running, rows: IntArray, pool: int, one_gpu: FloatArray) -> FloatArray:
    """Return the speed-up over one GPU of each unfinished job of ``rows`` that is in the pool.

    ``one_gpu``: rate on one GPU, by row of the workload; jobs with 0, unknown, are left out.
    """
    found = np.empty(rows.size)
    count = 0
    for row in rows:
        if running.pool[row] == pool and running.phase[row] == ACTIVE and one_gpu[row] > 0.0:
            found[count] = running.rate[row] / one_gpu[row]
            count += 1
    return found[:count]


@leaf
def _held(running: Running, rows: IntArray, pool: int) -> tuple[int, int, int, int]:
    jobs = ZERO
    holding = ZERO
    gpus = ZERO
    promised_gpus = ZERO
    for row in rows:
        if running.pool[row] == pool and running.phase[row] == ACTIVE:
            jobs += 1
            gpus += running.gpus[row]
            if running.gpus[row] > 0:
                holding += 1
            if running.promised[row]:
                promised_gpus += running.gpus[row]
    return jobs, holding, gpus, promised_gpus


def held_by(running: Running, rows: IntArray, pool: int) -> Held:
    """Return what the unfinished jobs of ``rows`` that are in the pool hold."""
    return Held(*_held(running, rows, pool))
