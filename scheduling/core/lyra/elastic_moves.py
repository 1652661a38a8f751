"""Running elastic jobs that move to servers on loan once these have room (Lyra leaves it open; spec A18).

Lyra never moves a running job. An elastic job's workers may join and leave, so it is the one kind of job that
could be handed over to other servers without losing its progress; it prefers servers on loan, where it can
shrink when these are asked back. A job that was preempted once has to stay on owned servers: one that takes
longer than servers are lent for would never end otherwise.
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
    """``jobs`` that move, ``placed`` rows (job, server, base, 0) where they go, and ``base`` workers per
    entry of the map that stay."""

    jobs: IntArray
    placed: IntArray
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
    """Move elastic jobs from owned servers to servers on loan, larger workers first, as far as their bases
    fit there.

    Only jobs that ran before (``held``), that their base on loan does not slow down, that do not mix, and
    that are not marked to stay (``stays``). ``room`` and ``base``, workers by kind and job, are changed.
    Moving back is not asked for: elastic jobs prefer servers on loan.
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
    """Running jobs on owned servers that would rather be on loan and are no slower there."""
    jobs = np.flatnonzero((held.base[OWNED] > 0) & (held.base[LENT] == 0) & ~demands.mixes)
    gpus, prefers = base_table(demands, jobs, naive)
    jobs = jobs[(prefers == LENT) & (gpus[OWNED] > 0) & (gpus[LENT] > 0)]
    slower: BoolArray = _base_rates(demands, LENT, jobs) < _base_rates(demands, OWNED, jobs) * (1.0 - 1e-9)
    willing: IntArray = jobs[~slower]
    return willing


def _base_rates(demands: Demands, kind: int, jobs: IntArray) -> FloatArray:
    speeds = demands.lent if kind == LENT else demands.owned
    rates: FloatArray = speeds.rate[speeds.offsets[jobs]]
    return rates


def _leave(room: Room, workers: WorkerMap, demands: Demands, moved: BoolArray) -> IntArray:
    """Free the GPUs of base workers that leave; returns who stays, per entry of the map."""
    job = np.repeat(np.arange(moved.size), np.diff(workers.offsets))
    leaves = moved[job]
    gone = np.where(leaves, workers.base, 0)
    np.add.at(room.free, workers.server, gone * demands.gpus_per_worker[job])
    np.subtract.at(room.base, workers.server, gone)
    return workers.base - gone
