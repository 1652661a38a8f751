"""One repack of the whole cluster, and what it changes (spec 2.9)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence
from functools import cached_property

import numpy as np

from scheduling.core.kernels import kernel, whole
from scheduling.core.placement.buddy_blocks import NOWHERE, Blocks
from scheduling.core.placement.occupancy import (
    BLOCKED,
    FREE,
    UNPLACED,
    Occupancy,
    addresses_of,
    empty_occupancy,
    leave,
    lift,
    seat,
)
from scheduling.core.placement.placing import place_queue
from scheduling.core.placement.present_placement import PresentPlacement
from scheduling.core.question.arrays import BoolArray
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


class Seating:
    """Present placements, entered into fresh occupancies as often as a decision needs."""

    def __init__(self, present: PresentPlacement) -> None:
        self.present = present

    @cached_property
    def _move_seconds(self) -> FloatArray:
        longest: FloatArray = self.present.jobs.pause.max(axis=1)
        return longest

    def _enter_locked(self, occupancy: Occupancy, rows: Sequence[int]) -> None:
        """Seat locked jobs so that nobody moves them; GPUs of an irregular one are blocked.

        A GPU that passes from one locked job to another is listed by both: it stays with whom it was seated
        for. An owner overwritten would leave its job in a place that is given away again.
        """
        if not rows:
            return
        homeless = self.enter(occupancy, rows)
        occupancy.settled[list(rows)] = RUN
        block_of = self.present.blocks.block_of
        for row in np.flatnonzero(homeless).tolist():
            for address in self.present.held.of(row):
                usable = address < block_of.size and block_of[address] != NOWHERE
                if usable and occupancy.owner[address] == FREE:
                    occupancy.owner[address] = BLOCKED
                    occupancy.taken[block_of[address]] += 1

    def fresh_with_locked(self, slack: FloatArray | None) -> Occupancy:
        """An occupancy with the locked jobs alone, fixed."""
        occupancy = self.fresh(slack)
        self._enter_locked(occupancy, self.present.rows_locked())
        return occupancy

    def enter(self, occupancy: Occupancy, rows: Sequence[int] | IntArray) -> BoolArray:
        """Seat the jobs among ``rows``; True per row of the problem whose GPUs are not usable."""
        homeless: BoolArray = seat(
            self.present.blocks,
            occupancy,
            np.asarray(rows, dtype=np.int64),
            self.present.held.addresses,
            self.present.held.offsets,
            self.present.jobs.gpus,
        )
        return homeless

    def fresh(self, slack: FloatArray | None = None) -> Occupancy:
        """An occupancy with nobody in it, blocked GPUs marked. ``slack``: see `Occupancy`; None: nobody is
        promised."""
        present = self.present
        occupancy: Occupancy = empty_occupancy(present.blocks, present.blocked, present.jobs.work.size)
        if slack is not None:
            self.note_slack(occupancy, slack)
        return occupancy

    def note_slack(self, occupancy: Occupancy, slack: FloatArray) -> None:
        """Tell the placement who can bear a move."""
        occupancy.slack[:] = slack
        occupancy.move_seconds[:] = self._move_seconds


def repack_together(
    seating: Seating, wanted: IntArray, slack: FloatArray | None = None
) -> tuple[Occupancy, list[int]]:
    """Place all jobs at once, larger ones first. Returns the places and the jobs left out (none,
    as long as the sizes are powers of two and fit in sum)."""
    present = seating.present
    rows = np.flatnonzero(~present.jobs.locked[: present.count])
    occupancy = seating.fresh_with_locked(slack)
    homeless = seating.enter(occupancy, rows)
    failed = _repack(present.blocks, occupancy, rows, wanted, homeless, present.by_submission)
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
        position = offsets[row]
        size = offsets[row + 1] - position
        old = held[held_offsets[row] : held_offsets[row + 1]]
        if locked[row]:
            addresses[position : position + size] = old
            continue
        changed[row] = gpus[row] != size or old.size != size
        if not changed[row]:
            for address in old:
                if address >= occupancy.owner.size or occupancy.owner[address] != row:
                    changed[row] = True
        for address in addresses_of(blocks, occupancy, row):
            addresses[position] = address
            position += 1
    return addresses, offsets, changed
