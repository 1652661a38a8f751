"""Repack: place all jobs anew, and find the jobs whose GPUs change (ElasticFlow 4.3)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from kernels.compiling import kernel, leaf, whole
from scheduling.core.placement.buddy_blocks import NOWHERE, Blocks
from scheduling.core.placement.occupancy import (
    BLOCKED,
    FREE,
    UNPLACED,
    Occupancy,
    empty_occupancy,
    leave,
    lift,
    list_addresses,
    seat,
)
from scheduling.core.placement.placing import place_queue
from scheduling.core.placement.present_placement import PresentPlacement
from scheduling.core.question.arrays import BoolArray, rows_where
from scheduling.core.question.snapshot import FloatArray, IntArray

RUN = whole(1)


@kernel
def _repack(
    blocks: Blocks,
    occupancy: Occupancy,
    rows: IntArray,
    wanted: IntArray,
    homeless: BoolArray,
    rank: IntArray,
) -> IntArray:
    """Place every row with its wanted number of GPUs; returns the rows for which there was no room."""
    queue = [(0, 0, 0, 0) for _ in range(0)]
    for row in rows:
        if wanted[row] == 0:
            leave(blocks, occupancy, row)
        elif wanted[row] != occupancy.size[row]:
            waited = 0 if occupancy.size[row] > 0 or homeless[row] else 1
            if occupancy.size[row] > 0:
                lift(blocks, occupancy, row)
            heapq.heappush(queue, (-wanted[row], waited, rank[row], row))
    _, failed = place_queue(blocks, occupancy, queue, rank, RUN)
    result = np.empty(len(failed), dtype=np.int64)
    for position in range(len(failed)):
        result[position] = failed[position]
    return result


class Seats(NamedTuple):
    """The present placement as arrays."""

    #: GPU addresses of all jobs, one job after the other.
    addresses: IntArray
    #: Job i has ``addresses[offsets[i]:offsets[i + 1]]``.
    offsets: IntArray
    #: Number of GPUs of each row, held offers included.
    gpus: IntArray
    #: Addresses that no job may have for now.
    blocked: IntArray
    #: Rows of locked jobs, which do not move.
    locked: IntArray
    #: The most seconds that a move costs each row.
    move_seconds: FloatArray


@kernel
def enter(blocks: Blocks, occupancy: Occupancy, seats: Seats, rows: IntArray) -> BoolArray:
    """Seat the jobs of ``rows`` at their present places; returns True, by row, for jobs without one."""
    return seat(blocks, occupancy, rows, seats.addresses, seats.offsets, seats.gpus)


@kernel
def fresh(blocks: Blocks, seats: Seats, slack: FloatArray) -> Occupancy:
    """An occupancy without any job placed, with blocked GPUs marked. ``slack``: see `Occupancy`."""
    occupancy = empty_occupancy(blocks, seats.blocked, seats.gpus.size)
    occupancy.slack[:] = slack
    occupancy.move_seconds[:] = seats.move_seconds
    return occupancy


@kernel
def _fresh_with_locked(blocks: Blocks, seats: Seats, slack: FloatArray) -> Occupancy:
    """An occupancy with the locked jobs alone, settled so that no job moves them.

    If the GPUs of a locked job are no regular place, they are blocked. A GPU that passes from one locked job
    to another is listed for both. It stays with the job that was seated first: otherwise that job's place
    would lose an address and could be given away.
    """
    occupancy = fresh(blocks, seats, slack)
    homeless = enter(blocks, occupancy, seats, seats.locked)
    for row in seats.locked:
        occupancy.settled[row] = RUN
        if not homeless[row]:
            continue
        for address in seats.addresses[seats.offsets[row] : seats.offsets[row + 1]]:
            usable = address < blocks.block_of.size and blocks.block_of[address] != NOWHERE
            if usable and occupancy.owner[address] == FREE:
                occupancy.owner[address] = BLOCKED
                occupancy.taken[blocks.block_of[address]] += 1
    return occupancy


@kernel
def all_repacked(
    blocks: Blocks, seats: Seats, slack: FloatArray, rows: IntArray, wanted: IntArray, rank: IntArray
) -> tuple[Occupancy, IntArray]:
    """`repack_together` for ``rows``, which are not locked; returns (occupancy, rows without room)."""
    occupancy = _fresh_with_locked(blocks, seats, slack)
    homeless = enter(blocks, occupancy, seats, rows)
    failed = _repack(blocks, occupancy, rows, wanted, homeless, rank)
    return occupancy, failed


class Seating:
    """Makes fresh occupancies from the present placement, as often as a decision needs one."""

    def __init__(self, present: PresentPlacement) -> None:
        self.present = present

    @cached_property
    def seats(self) -> Seats:
        """The present placement as arrays for kernels."""
        present = self.present
        return Seats(
            present.held.addresses,
            present.held.offsets,
            present.jobs.gpus,
            present.blocked,
            rows_where(present.jobs.locked),
            present.jobs.pause.max(axis=1),
        )

    def fresh_with_locked(self, slack: FloatArray | None = None) -> Occupancy:
        """An occupancy with the locked jobs alone, which no job moves.

        ``slack``: see `Occupancy`; None if no job has a promise.
        """
        found: Occupancy = _fresh_with_locked(self.present.blocks, self.seats, self._slack(slack))
        return found

    def enter(self, occupancy: Occupancy, rows: Sequence[int] | IntArray) -> BoolArray:
        """Seat the jobs of ``rows`` at their present places; returns True, by row, for jobs without one."""
        homeless: BoolArray = enter(
            self.present.blocks, occupancy, self.seats, np.asarray(rows, dtype=np.int64)
        )
        return homeless

    def fresh(self, slack: FloatArray | None = None) -> Occupancy:
        """An occupancy without any job placed, with blocked GPUs marked.

        ``slack``: see `Occupancy`; None if no job has a promise.
        """
        found: Occupancy = fresh(self.present.blocks, self.seats, self._slack(slack))
        return found

    def together(self, wanted: IntArray, slack: FloatArray | None) -> tuple[Occupancy, IntArray]:
        """See `repack_together`."""
        present = self.present
        rows = rows_where(~present.jobs.locked[: present.count])
        return all_repacked(
            present.blocks, self.seats, self._slack(slack), rows, wanted, present.by_submission
        )

    def _slack(self, slack: FloatArray | None) -> FloatArray:
        return np.full(self.present.jobs.gpus.size, inf) if slack is None else slack


def repack_together(
    seating: Seating, wanted: IntArray, slack: FloatArray | None = None
) -> tuple[Occupancy, list[int]]:
    """Place all jobs at once, larger ones first.

    ``wanted``: GPUs of each row. Returns (occupancy, rows without room). If all sizes are powers of two and
    their sum fits, every row finds room.
    """
    occupancy, failed = seating.together(wanted, slack)
    return occupancy, failed.tolist()


def repack_promises_first(
    seating: Seating, wanted: IntArray, promised: Sequence[int], slack: FloatArray | None = None
) -> tuple[Occupancy, list[int]]:
    """Place the promised jobs as if they were alone, then the others on the GPUs that are left.

    Promised jobs thus sit exactly where the forecast of the pause budget put them. ``wanted``: GPUs of each
    row. Returns (occupancy, rows for which no buddy block was left).
    """
    present = seating.present
    jobs = present.count
    first = [row for row in promised if row < jobs and not present.jobs.locked[row]]
    occupancy = seating.fresh_with_locked(slack)
    homeless = seating.enter(occupancy, first)
    failed = _repack(
        present.blocks, occupancy, np.array(first, dtype=np.int64), wanted, homeless, present.by_submission
    )
    if failed.size:
        return occupancy, failed.tolist()
    occupancy.settled[first] = RUN
    ahead = set(first)
    others = [row for row in range(jobs) if row not in ahead and not present.jobs.locked[row]]
    homeless = seating.enter(occupancy, [row for row in others if wanted[row] > 0])
    failed = _repack(
        present.blocks, occupancy, np.array(others, dtype=np.int64), wanted, homeless, present.by_submission
    )
    return occupancy, failed.tolist()


@kernel
def new_addresses(
    blocks: Blocks,
    occupancy: Occupancy,
    held: IntArray,
    held_offsets: IntArray,
    gpus: IntArray,
    locked: BoolArray,
) -> tuple[IntArray, IntArray, BoolArray]:
    """The GPUs of all jobs after the repack.

    ``held`` and ``held_offsets``: the present placements, which locked jobs keep. Returns (addresses of all
    jobs, offsets of each job's addresses, True by row for jobs whose GPUs change).
    """
    rows = held_offsets.size - 1
    offsets = np.zeros(rows + 1, dtype=np.int64)
    for row in range(rows):
        size = occupancy.size[row] if occupancy.base[row] != UNPLACED else 0
        if locked[row]:
            size = held_offsets[row + 1] - held_offsets[row]
        offsets[row + 1] = offsets[row] + size
    addresses = np.empty(offsets[rows], dtype=np.int64)
    changed = np.zeros(rows, dtype=np.bool_)
    for row in range(rows):
        wanted = addresses[offsets[row] : offsets[row + 1]]
        old = held[held_offsets[row] : held_offsets[row + 1]]
        if locked[row]:
            wanted[:] = old
        else:
            changed[row] = gpus[row] != wanted.size or _moves(occupancy, row, old, wanted.size)
            list_addresses(blocks, occupancy, row, wanted)
    return addresses, offsets, changed


@leaf
def _moves(occupancy: Occupancy, row: int, old: IntArray, size: int) -> bool:
    """Whether the job's new place, of ``size`` GPUs, differs from its ``old`` GPUs."""
    owner = occupancy.owner
    kept = 0
    while kept < old.size and old[kept] < owner.size and owner[old[kept]] == row:
        kept += 1
    return old.size != size or kept < old.size
