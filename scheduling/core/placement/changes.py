"""The smallest set of changes that turns the present placement into the wanted one.

A job whose GPUs stay the same has no change. The changes are ordered so that GPUs are free when a job needs
them. If jobs wait for each other's GPUs in a circle, one of them is suspended first, best effort before
promises, and charged for its wait (contracts 4).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.core.placement.occupancy import Occupancy
from scheduling.core.placement.present_placement import PresentPlacement
from scheduling.core.placement.repacking import new_addresses
from scheduling.core.placement.trades import break_trades
from scheduling.core.question.arrays import Placements, rows_where
from scheduling.core.question.decision import REASONS, Change, ChangeKind
from scheduling.core.question.snapshot import IntArray


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


def changes_between(present: PresentPlacement, occupancy: Occupancy, suspension_order: IntArray) -> Changes:
    """The changes that lead from the present placement to ``occupancy``.

    Locked jobs have no change and keep their placement. ``suspension_order``, by row: of jobs that wait for
    each other in a circle, the one with the lowest value is suspended first.
    """
    held = present.held
    addresses, offsets, changed = new_addresses(
        present.blocks, occupancy, held.addresses, held.offsets, present.gpus, present.locked
    )
    wanted = Placements(addresses, offsets)
    rows = rows_where(changed).tolist()
    if not rows:
        return Changes((), (), wanted, {})
    suspended_rows = [row for row in rows if offsets[row + 1] == offsets[row]]
    changed_rows = [row for row in rows if offsets[row + 1] > offsets[row]]
    order, first_out, waits = _order(present, occupancy, changed_rows, suspension_order)
    changes = [_change(present, row, (), 0.0, False) for row in suspended_rows]
    pauses: dict[int, float] = {}
    for position in order:
        row = changed_rows[position]
        gpus = wanted.of(row)
        pauses[row] = _pause(present, row, len(gpus)) + float(waits[position])
        changes.append(_change(present, row, gpus, pauses[row], bool(first_out[position])))
    ordered = [*suspended_rows, *(changed_rows[position] for position in order)]
    return Changes(tuple(changes), tuple(ordered), wanted, pauses)


def _order(
    present: PresentPlacement, occupancy: Occupancy, changed: Sequence[int], suspension_order: IntArray
) -> tuple[list[int], list[bool], list[float]]:
    """The result of `break_trades`: order of the changes, suspended flags, and extra seconds of each wait."""
    if not changed:
        return [], [], []
    before = np.full(present.blocks.block_of.size, -1)
    rows = np.array(changed, dtype=np.int64)
    for row in changed:
        before[list(present.held.of(row))] = row
    pause = np.zeros(present.jobs.work.size)
    pause[rows] = [_pause(present, row, int(occupancy.size[row])) for row in changed]
    order, suspended, waits = break_trades(present.blocks, occupancy, before, rows, pause, suspension_order)
    return order.tolist(), suspended.tolist(), waits.tolist()


def _pause(present: PresentPlacement, row: int, gpus: int) -> float:
    levels = present.jobs.levels[row]
    return float(present.jobs.pause[row, int(np.searchsorted(levels, gpus))])


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
