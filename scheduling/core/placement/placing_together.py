"""Place the next slot of all jobs at once, in one call: only those that hold GPUs or get some take part.

Thousands of jobs may wait for a few GPUs. The steps are those of `repack_together` and `rearranged`, which a
caller can also take one by one; together they hand no arrays back and forth.
"""

from __future__ import annotations

from math import inf

import numpy as np

from kernels.compiling import kernel
from scheduling.core.placement.buddy_blocks import Blocks
from scheduling.core.placement.changes import Rearrangement, rearranged
from scheduling.core.placement.repacking import Seats, all_repacked
from scheduling.core.question.arrays import JobArrays
from scheduling.core.question.columns import regather
from scheduling.core.question.snapshot import FloatArray, IntArray


@kernel
def placed_together(
    blocks: Blocks,
    jobs: JobArrays,
    held: IntArray,
    held_offsets: IntArray,
    blocked: IntArray,
    wanted: IntArray,
    suspension_order: IntArray,
) -> tuple[Rearrangement, IntArray]:
    """Place all jobs, larger ones first; locked jobs keep their GPUs.

    ``held`` and ``held_offsets``: the present placement; further rows are held offers. ``blocked``: addresses
    that no job may have for now. ``wanted``: GPUs of each row. ``suspension_order``: see `rearranged`.
    Returns (the changes, the rows that found no room).
    """
    involved = _involved(jobs, held_offsets, wanted)
    some = np.concatenate((involved, np.arange(held_offsets.size - 1, wanted.size)))
    part = _of_rows(jobs, some)
    addresses, offsets = regather(held, held_offsets, involved)
    moves = _longest_pauses(part)
    seats = Seats(addresses, offsets, part.gpus, blocked, np.flatnonzero(part.locked), moves)
    free_to_move = np.flatnonzero(~part.locked[: involved.size])
    occupancy, failed = all_repacked(
        blocks, seats, np.full(some.size, inf), free_to_move, wanted[some], np.arange(some.size)
    )
    found = rearranged(blocks, occupancy, part, addresses, offsets, suspension_order[some])
    return _among_all(found, involved, held_offsets.size), some[failed]


@kernel
def _involved(jobs: JobArrays, held_offsets: IntArray, wanted: IntArray) -> IntArray:
    """Rows of the jobs that hold GPUs, get some or are locked, ascending."""
    count = held_offsets.size - 1
    rows = np.empty(count, dtype=np.int64)
    found = 0
    for row in range(count):
        holds = jobs.gpus[row] > 0 or held_offsets[row + 1] > held_offsets[row]
        if holds or wanted[row] > 0 or jobs.locked[row]:
            rows[found] = row
            found += 1
    return rows[:found]


@kernel
def _of_rows(jobs: JobArrays, rows: IntArray) -> JobArrays:
    """The jobs of ``rows`` alone."""
    return JobArrays(
        jobs.levels[rows], jobs.throughput[rows], jobs.pause[rows], jobs.level_count[rows], jobs.work[rows],
        jobs.gpus[rows], jobs.pause_left[rows], jobs.finished_at[rows], jobs.finishing[rows],
        jobs.locked[rows], jobs.locked_until[rows], jobs.earliest[rows],
    )  # fmt: skip


@kernel
def _longest_pauses(jobs: JobArrays) -> FloatArray:
    """The most seconds that a move costs each job."""
    longest = np.empty(jobs.gpus.size)
    for row in range(longest.size):
        longest[row] = jobs.pause[row].max()
    return longest


@kernel
def _among_all(found: Rearrangement, involved: IntArray, offsets: int) -> Rearrangement:
    """A rearrangement of the rows ``involved`` as one of all rows, of which the others hold nothing.

    ``offsets``: how many offsets that has, one more than rows.
    """
    places = np.zeros(offsets, dtype=np.int64)
    for position in range(involved.size):
        places[involved[position] + 1] = found.offsets[position + 1] - found.offsets[position]
    return Rearrangement(
        found.addresses, np.cumsum(places), involved[found.rows], found.pause_seconds, found.suspended
    )
