"""One repack of the whole cluster, and what it changes (spec 2.9)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cached_property
from math import inf
from typing import NamedTuple

import numpy as np

from scheduling.core.kernels import kernel, leaf, whole
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
    """Bring every row to its wanted size; returns the rows for which there was no room."""
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
    """Where jobs sit before anybody is placed, and what of the cluster may not be used.

    ``addresses[offsets[i]:offsets[i + 1]]``: GPUs of job i; ``gpus``: how many every row has, held offers
    included. ``blocked``: addresses that nobody may have for now. ``locked``: rows that nobody moves.
    ``move_seconds``: what a move costs each row at most.
    """

    addresses: IntArray
    offsets: IntArray
    gpus: IntArray
    blocked: IntArray
    locked: IntArray
    move_seconds: FloatArray


@kernel
def enter(blocks: Blocks, occupancy: Occupancy, seats: Seats, rows: IntArray) -> BoolArray:
    """Seat the jobs among ``rows``; True per row of the problem whose GPUs are not usable."""
    return seat(blocks, occupancy, rows, seats.addresses, seats.offsets, seats.gpus)


@kernel
def fresh(blocks: Blocks, seats: Seats, slack: FloatArray) -> Occupancy:
    """An occupancy with nobody in it, blocked GPUs marked. ``slack``: see `Occupancy`."""
    occupancy = empty_occupancy(blocks, seats.blocked, seats.gpus.size)
    occupancy.slack[:] = slack
    occupancy.move_seconds[:] = seats.move_seconds
    return occupancy


@kernel
def _fresh_with_locked(blocks: Blocks, seats: Seats, slack: FloatArray) -> Occupancy:
    """The same with the locked jobs, so that nobody moves them; GPUs of an irregular one are blocked.

    A GPU that passes from one locked job to another is listed by both: it stays with whom it was seated
    for. An owner overwritten would leave its job in a place that is given away again.
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
def _all_repacked(
    blocks: Blocks, seats: Seats, slack: FloatArray, rows: IntArray, wanted: IntArray, rank: IntArray
) -> tuple[Occupancy, IntArray]:
    """`repack_together` of the rows that are not locked."""
    occupancy = _fresh_with_locked(blocks, seats, slack)
    homeless = enter(blocks, occupancy, seats, rows)
    failed = _repack(blocks, occupancy, rows, wanted, homeless, rank)
    return occupancy, failed


class Seating:
    """Present placements, entered into fresh occupancies as often as a decision needs."""

    def __init__(self, present: PresentPlacement) -> None:
        self.present = present

    @cached_property
    def seats(self) -> Seats:
        """The present placements as kernels see them."""
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
        """An occupancy with the locked jobs alone, fixed. ``slack``: see `Occupancy`; None: nobody is
        promised."""
        found: Occupancy = _fresh_with_locked(self.present.blocks, self.seats, self._slack(slack))
        return found

    def enter(self, occupancy: Occupancy, rows: Sequence[int] | IntArray) -> BoolArray:
        """Seat the jobs among ``rows``; True per row of the problem whose GPUs are not usable."""
        homeless: BoolArray = enter(
            self.present.blocks, occupancy, self.seats, np.asarray(rows, dtype=np.int64)
        )
        return homeless

    def fresh(self, slack: FloatArray | None = None) -> Occupancy:
        """An occupancy with nobody in it, blocked GPUs marked. ``slack``: see `Occupancy`; None: nobody is
        promised."""
        found: Occupancy = fresh(self.present.blocks, self.seats, self._slack(slack))
        return found

    def together(self, wanted: IntArray, slack: FloatArray | None) -> tuple[Occupancy, IntArray]:
        """See `repack_together`."""
        present = self.present
        rows = rows_where(~present.jobs.locked[: present.count])
        return _all_repacked(
            present.blocks, self.seats, self._slack(slack), rows, wanted, present.by_submission
        )

    def _slack(self, slack: FloatArray | None) -> FloatArray:
        return np.full(self.present.jobs.gpus.size, inf) if slack is None else slack


def repack_together(
    seating: Seating, wanted: IntArray, slack: FloatArray | None = None
) -> tuple[Occupancy, list[int]]:
    """Place all jobs at once, larger ones first. Returns the places and the jobs left out (none,
    as long as the sizes are powers of two and fit in sum)."""
    occupancy, failed = seating.together(wanted, slack)
    return occupancy, failed.tolist()


def repack_promises_first(
    seating: Seating, wanted: IntArray, promised: Sequence[int], slack: FloatArray | None = None
) -> tuple[Occupancy, list[int]]:
    """Place promised jobs as though nobody else were there, then the others in what is left.

    This is exactly the placement that the forecast of promises foresaw. Returns the places and
    the other jobs for which no aligned block was left.
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
    """GPUs of all jobs in one array with offsets, and True for every job whose GPUs are others than now.

    ``held`` and ``held_offsets`` are the present placements; locked jobs keep theirs.
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
    """Whether the job has other GPUs than ``old`` now, or another number of them."""
    owner = occupancy.owner
    kept = 0
    while kept < old.size and old[kept] < owner.size and owner[old[kept]] == row:
        kept += 1
    return old.size != size or kept < old.size
