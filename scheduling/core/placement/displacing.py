"""What it costs others when a job takes their GPUs."""

from __future__ import annotations

import numpy as np

from scheduling.core.kernels import kernel
from scheduling.core.placement.buddy_blocks import Blocks
from scheduling.core.placement.occupancy import BLOCKED, FREE, TIGHT, UNPLACED, Occupancy
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import IntArray


@kernel
def prices(
    occupancy: Occupancy, bases: IntArray, sizes: IntArray, run: int, asked: int
) -> tuple[BoolArray, IntArray]:
    """Of taking so many addresses (``sizes``) from each of ``bases`` on, for a job of ``asked`` GPUs.

    Returns (whether it is allowed; jobs displaced, GPUs displaced, overlap). A job that a move would make
    late counts as TIGHT jobs. Not allowed is to displace a job that is settled in this pass or is as large.
    """
    # Read through the tuple in the loop, each array would be counted as in use and released again each time.
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
    """First addresses of all aligned places of ``size`` GPUs, ascending."""
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
    """The aligned place that displaces the least, or UNPLACED."""
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
