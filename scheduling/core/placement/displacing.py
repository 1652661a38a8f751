"""The price of a place: the jobs and GPUs that a job displaces when it takes the place."""

from __future__ import annotations

import numpy as np

from kernels.compiling import kernel
from scheduling.core.placement.buddy_blocks import Blocks
from scheduling.core.placement.occupancy import BLOCKED, FREE, TIGHT, UNPLACED, Occupancy
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import IntArray


@kernel
def prices(
    occupancy: Occupancy, bases: IntArray, sizes: IntArray, run: int, asked: int
) -> tuple[BoolArray, IntArray]:
    """The price of each place for a job of ``asked`` GPUs; place i: ``sizes[i]`` GPUs from ``bases[i]`` on.

    Returns (allowed, prices). Each row of prices holds jobs displaced, GPUs displaced, and overlap with the
    job's own old GPUs. A displaced job that the move would make late counts as TIGHT jobs. A place is not
    allowed if it has blocked GPUs, or displaces a job that is settled in pass ``run`` or is as large.
    """
    # Local names: a read through the tuple would count a reference up and down in every step of the loop.
    owner = occupancy.owner
    former = occupancy.former
    mine = occupancy.mine
    settled = occupancy.settled
    size_of = occupancy.size
    slack = occupancy.slack
    move_seconds = occupancy.move_seconds
    allowed = np.ones(bases.size, dtype=np.bool_)
    found = np.zeros((bases.size, 3), dtype=np.int64)
    for place in range(bases.size):
        jobs = 0
        gpus = 0
        overlap = 0
        last = FREE
        for address in range(bases[place], bases[place] + sizes[place]):
            job = owner[address]
            if job == BLOCKED or job != FREE and (settled[job] == run or size_of[job] >= asked):
                allowed[place] = False
                break
            if job == FREE:
                job = former[address]
            if job != FREE:
                gpus += 1
                if job != last:
                    jobs += TIGHT if slack[job] < move_seconds[job] else 1
            elif mine[address] != FREE:
                overlap += 1
            last = job
        if allowed[place]:
            found[place, 0] = jobs
            found[place, 1] = gpus
            found[place, 2] = overlap
    return allowed, found


@kernel
def _aligned_places(blocks: Blocks, size: int) -> IntArray:
    """The first address of every aligned place of ``size`` GPUs, ascending."""
    base = blocks.base
    room = blocks.size
    total = 0
    for block in range(base.size):
        total += room[block] // size
    places = np.empty(total, dtype=np.int64)
    written = 0
    for block in range(base.size):
        for number in range(room[block] // size):
            places[written] = base[block] + number * size
            written += 1
    return places


@kernel
def displacing_place(blocks: Blocks, occupancy: Occupancy, size: int, run: int) -> int:
    """The first address of the aligned place that displaces the least, or UNPLACED if none is allowed."""
    places = _aligned_places(blocks, size)
    allowed, found = prices(occupancy, places, np.full(places.size, size), run, size)
    best = UNPLACED
    best_key = (0, 0, 0)
    for place in range(places.size):
        key = (found[place, 0], found[place, 1], -found[place, 2])
        if allowed[place] and (best == UNPLACED or key < best_key):
            best = places[place]
            best_key = key
    return best
