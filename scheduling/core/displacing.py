"""What it costs others when a job takes their GPUs."""

from __future__ import annotations

from scheduling.core.compiling import kernel
from scheduling.core.occupancy import BLOCKED, FREE, TIGHT, UNPLACED


@kernel
def _is_fixed(occupancy, address, size, run):  # type: ignore[no-untyped-def]
    """Whether the address belongs to a job that may not be displaced by one of ``size`` GPUs."""
    job = occupancy.owner[address]
    return job == BLOCKED or job != FREE and (occupancy.settled[job] == run or occupancy.size[job] >= size)


@kernel
def price(occupancy, base, size, run, asked):  # type: ignore[no-untyped-def]
    """(allowed, jobs displaced, GPUs displaced, overlap) of taking ``size`` addresses at ``base``.

    A job that a move would make late counts as TIGHT jobs.
    """
    jobs = 0
    gpus = 0
    overlap = 0
    last = FREE
    for address in range(base, base + size):
        if _is_fixed(occupancy, address, asked, run):
            return False, 0, 0, 0
        job = occupancy.owner[address]
        if job == FREE:
            job = occupancy.former[address]
        if job != FREE:
            gpus += 1
            if job != last:
                jobs += TIGHT if occupancy.slack[job] < occupancy.move_seconds[job] else 1
        elif occupancy.mine[address] != FREE:
            overlap += 1
        last = job
    return True, jobs, gpus, overlap


@kernel
def displacing_place(blocks, occupancy, size, run):  # type: ignore[no-untyped-def]
    """The aligned place that displaces the least, or UNPLACED."""
    best = UNPLACED
    best_key = (0, 0, 0)
    for block in range(blocks.base.size):
        if blocks.size[block] < size:
            continue
        first = blocks.base[block]
        for base in range(first, first + blocks.size[block] - size + 1, size):
            allowed, jobs, gpus, overlap = price(occupancy, base, size, run, size)
            key = (jobs, gpus, -overlap)
            if allowed and (best == UNPLACED or key < best_key):
                best = base
                best_key = key
    return best
