"""The smallest set of changes that turns the present placement into the wanted one.

A job whose GPUs stay the same has no change. The changes are ordered so that GPUs are free when a job needs
them. If jobs wait for each other's GPUs in a circle, one of them is suspended first, best effort before
promises, and charged for its wait.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from kernels.compiling import kernel, leaf
from scheduling.core.placement.buddy_blocks import Blocks
from scheduling.core.placement.occupancy import FREE, Occupancy
from scheduling.core.placement.present_placement import PresentPlacement
from scheduling.core.placement.repacking import new_addresses
from scheduling.core.placement.trades import break_trades
from scheduling.core.question.arrays import BoolArray, JobArrays, Placements
from scheduling.core.question.decision import REASONS, Change, ChangeKind
from scheduling.core.question.snapshot import FloatArray, IntArray


@dataclass(frozen=True)
class Changes:
    """The changes of one reallocation and the placement after them."""

    #: Changes in the order in which they can be made.
    changes: tuple[Change, ...]
    #: Row of each change.
    rows: tuple[int, ...]
    #: GPUs of every job after the changes.
    placements: Placements
    #: Pause in seconds of each row that changes and has GPUs afterwards.
    pauses: dict[int, float]


class Rearrangement(NamedTuple):
    """`Changes` as arrays. The last three have one entry for each change, in the order of the changes."""

    #: GPU addresses of all jobs after the changes, one job after the other.
    addresses: IntArray
    #: Job i then has ``addresses[offsets[i]:offsets[i + 1]]``.
    offsets: IntArray
    #: Row of the job; those that lose all GPUs come first.
    rows: IntArray
    #: Its pause in seconds, 0 for a job without GPUs afterwards.
    pause_seconds: FloatArray
    #: True if the job is suspended first because it waits in a circle.
    suspended: BoolArray


@kernel
def rearranged(
    blocks: Blocks,
    occupancy: Occupancy,
    jobs: JobArrays,
    held: IntArray,
    held_offsets: IntArray,
    suspension_order: IntArray,
) -> Rearrangement:
    """The changes that lead from the present placement to ``occupancy``.

    ``held`` and ``held_offsets``: the present placement. Locked jobs have no change and keep theirs.
    ``suspension_order``, by row: of jobs that wait for each other in a circle, the one with the lowest value
    is suspended first.
    """
    addresses, offsets, changed = new_addresses(blocks, occupancy, held, held_offsets, jobs.gpus, jobs.locked)
    rows = np.flatnonzero(changed)
    pause_seconds = np.zeros(rows.size)
    suspended = np.zeros(rows.size, dtype=np.bool_)
    if rows.size == 0:
        return Rearrangement(addresses, offsets, rows, pause_seconds, suspended)
    goes_on = offsets[rows + 1] > offsets[rows]
    staying = rows[goes_on]
    pause = np.zeros(jobs.gpus.size)
    before = np.full(blocks.block_of.size, FREE)
    for row in staying:
        pause[row] = _pause(jobs, row, offsets[row + 1] - offsets[row])
        for address in held[held_offsets[row] : held_offsets[row + 1]]:
            before[address] = row
    order, first_out, waits = break_trades(blocks, occupancy, before, staying, pause, suspension_order)
    leaving = rows.size - staying.size
    rows[:leaving] = rows[~goes_on]
    for place in range(order.size):
        position = order[place]
        row = staying[position]
        rows[leaving + place] = row
        pause_seconds[leaving + place] = pause[row] + waits[position]
        suspended[leaving + place] = first_out[position]
    return Rearrangement(addresses, offsets, rows, pause_seconds, suspended)


@leaf
def _pause(jobs: JobArrays, row: int, gpus: int) -> float:
    """Seconds of pause of a change to the job's lowest level with at least ``gpus`` GPUs."""
    last = jobs.levels.shape[1] - 1
    level = 0
    while level < last and jobs.levels[row, level] < gpus:
        level += 1
    return float(jobs.pause[row, level])


def changes_between(present: PresentPlacement, occupancy: Occupancy, suspension_order: IntArray) -> Changes:
    """`rearranged` for the present placement, as `Changes`."""
    held = present.held
    return changes_of(
        present,
        rearranged(
            present.blocks, occupancy, present.jobs, held.addresses, held.offsets, suspension_order
        ),
    )  # fmt: skip


def changes_of(present: PresentPlacement, found: Rearrangement) -> Changes:
    """A rearrangement of the present placement as `Changes`."""
    wanted = Placements(found.addresses, found.offsets)
    rows = found.rows.tolist()
    changes = []
    pauses: dict[int, float] = {}
    for row, seconds, suspended in zip(
        rows, found.pause_seconds.tolist(), found.suspended.tolist(), strict=True
    ):
        gpus = wanted.of(row)
        if gpus:
            pauses[row] = seconds
        changes.append(_change(present, row, gpus, seconds, suspended))
    return Changes(tuple(changes), tuple(rows), wanted, pauses)


def _change(
    present: PresentPlacement, row: int, addresses: tuple[int, ...], pause_seconds: float, suspend_first: bool
) -> Change:
    before, after = int(present.gpus[row]), len(addresses)
    if after == 0:
        kind = ChangeKind.SUSPEND
    elif before == 0:
        kind = ChangeKind.START
    elif after == before:
        kind = ChangeKind.MIGRATE
    else:
        kind = ChangeKind.GROW if after > before else ChangeKind.SHRINK
    reason = REASONS[kind]
    if suspend_first:
        reason += "; it lets go first because others wait for its GPUs while it waits for theirs"
    return Change(
        job_id=present.ids[row],
        kind=kind,
        gpus_before=before,
        gpus_after=after,
        addresses=addresses,
        pause_seconds=pause_seconds,
        reason=reason,
        suspend_first=suspend_first,
    )
