"""Running elastic jobs move to on-loan servers once these have room (not part of Lyra; spec A18).

Lyra never moves a running job. An elastic job could move without losing progress, because its workers may
join and leave. It prefers on-loan servers, where it can shrink at a reclaim. A job that was preempted once
must stay on owned servers: otherwise a job that runs longer than the loans last would never end.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.lyra.base_and_flexible import LENT, OWNED, Demands, base_table
from scheduling.core.lyra.fleet import WorkerMap
from scheduling.core.lyra.worker_placement import Grouping, Held, Room, place_bases
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray


class Moves(NamedTuple):
    """The moves of one tick."""

    #: Rows of the jobs that move.
    jobs: IntArray
    #: Their new placements as rows (job, server, base workers, 0).
    placed: IntArray
    #: Base workers that remain on each entry of the worker map.
    base: IntArray


def move_onto_loan(
    room: Room,
    workers: WorkerMap,
    demands: Demands,
    held: Held,
    base: IntArray,
    grouping: Grouping,
    stays: BoolArray | None,
) -> Moves:
    """Move elastic jobs from owned to on-loan servers, larger workers first, as long as their base demands
    fit.

    A job moves only if it ran before (``held``), is no slower with its base on loan, does not mix kinds and
    is not marked in ``stays``. Changes ``room`` and ``base`` (workers by kind and job) in place. Jobs never
    move back.
    """
    jobs = _who_may(demands, held, naive=not grouping.apart)
    if stays is not None:
        jobs = jobs[~stays[jobs]]
    number = demands.lent.workers[demands.lent.offsets[jobs]]
    width = demands.gpus_per_worker[jobs]
    order = np.lexsort((jobs, -number * width, -width))
    jobs, number = jobs[order], number[order]
    placed, found = place_bases(
        room, jobs, np.full_like(jobs, LENT), number, demands.gpus_per_worker, grouping
    )
    moved = np.zeros(base.shape[1], dtype=np.bool_)
    moved[jobs[found]] = True
    base[OWNED, jobs[found]] = 0
    base[LENT, jobs[found]] = number[found]
    return Moves(jobs[found], placed, _leave(room, workers, demands, moved))


def _who_may(demands: Demands, held: Held, *, naive: bool) -> IntArray:
    """Running jobs on owned servers that prefer on-loan servers and are no slower there."""
    jobs = np.flatnonzero((held.base[OWNED] > 0) & (held.base[LENT] == 0) & ~demands.mixes)
    gpus, prefers = base_table(demands, jobs, naive)
    jobs = jobs[(prefers == LENT) & (gpus[OWNED] > 0) & (gpus[LENT] > 0)]
    slower: BoolArray = _base_rates(demands, LENT, jobs) < _base_rates(demands, OWNED, jobs) * (1.0 - 1e-9)
    willing: IntArray = jobs[~slower]
    return willing


def _base_rates(demands: Demands, kind: int, jobs: IntArray) -> FloatArray:
    """Iterations per second of each job at its base demand on one kind of servers."""
    speeds = demands.lent if kind == LENT else demands.owned
    rates: FloatArray = speeds.rate[speeds.offsets[jobs]]
    return rates


def _leave(room: Room, workers: WorkerMap, demands: Demands, moved: BoolArray) -> IntArray:
    """Free the GPUs of the base workers that move. Returns the base workers that remain on each entry of the
    map."""
    job = np.repeat(np.arange(moved.size), np.diff(workers.offsets))
    leaves = moved[job]
    gone = np.where(leaves, workers.base, 0)
    np.add.at(room.free, workers.server, gone * demands.gpus_per_worker[job])
    np.subtract.at(room.base, workers.server, gone)
    return workers.base - gone
