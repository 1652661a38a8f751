"""The smallest set of changes that turns the present placement into the wanted one.

A job whose GPUs stay the same is not touched. Changes come in an order in which GPUs are free when
they are needed; where jobs wait for each other in a circle, one of them is suspended first
(contracts 4), best effort before promises, and charged for it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from scheduling.core.placement.occupancy import Occupancy
from scheduling.core.placement.repacking import new_addresses
from scheduling.core.placement.standing import Standing
from scheduling.core.placement.trades import break_trades
from scheduling.core.question.arrays import Placements
from scheduling.core.question.decision import REASONS, Change, ChangeKind
from scheduling.core.question.snapshot import IntArray


@dataclass(frozen=True)
class Changes:
    """``changes`` in an order that works, the row of each, the ``placements`` they lead to, and the pause in seconds of
    every row that changes onto GPUs."""

    changes: tuple[Change, ...]
    rows: tuple[int, ...]
    placements: Placements
    pauses: dict[int, float]


def changes_between(standing: Standing, occupancy: Occupancy, reluctance: IntArray) -> Changes:
    """What leads from the present placement to ``occupancy``.

    Locked jobs have no change and keep their placement. ``reluctance``: who is suspended first where jobs wait for each
    other, per row.
    """
    held = standing.held
    addresses, offsets, changed = new_addresses(
        standing.blocks, occupancy, held.addresses, held.offsets, standing.gpus, standing.locked
    )
    wanted = Placements(addresses, offsets)
    rows = np.flatnonzero(changed).tolist()
    suspended_rows = [row for row in rows if offsets[row + 1] == offsets[row]]
    changed_rows = [row for row in rows if offsets[row + 1] > offsets[row]]
    order, first_out, waits = _order(standing, occupancy, changed_rows, reluctance)
    changes = [_change(standing, row, (), 0.0, False) for row in suspended_rows]
    pauses: dict[int, float] = {}
    for position in order:
        row = changed_rows[position]
        gpus = wanted.of(row)
        pauses[row] = _pause(standing, row, len(gpus)) + float(waits[position])
        changes.append(_change(standing, row, gpus, pauses[row], bool(first_out[position])))
    ordered = [*suspended_rows, *(changed_rows[position] for position in order)]
    return Changes(tuple(changes), tuple(ordered), wanted, pauses)


def _order(
    standing: Standing, occupancy: Occupancy, changed: Sequence[int], reluctance: IntArray
) -> tuple[list[int], list[bool], list[float]]:
    """Order of the changes, who is suspended first, and for how long each waits beyond its pause."""
    if not changed:
        return [], [], []
    before = np.full(standing.blocks.block_of.size, -1)
    rows = np.array(changed, dtype=np.int64)
    for row in changed:
        before[list(standing.held.of(row))] = row
    pause = np.zeros(standing.jobs.work.size)
    pause[rows] = [_pause(standing, row, int(occupancy.size[row])) for row in changed]
    order, suspended, waits = break_trades(standing.blocks, occupancy, before, rows, pause, reluctance)
    return order.tolist(), suspended.tolist(), waits.tolist()


def _pause(standing: Standing, row: int, gpus: int) -> float:
    levels = standing.jobs.levels[row]
    return float(standing.jobs.pause[row, int(np.searchsorted(levels, gpus))])


def _change(
    standing: Standing, row: int, addresses: tuple[int, ...], pause_seconds: float, suspend_first: bool
) -> Change:
    before, after = int(standing.gpus[row]), len(addresses)
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
        job_id=standing.ids[row],
        kind=kind,
        gpus_before=before,
        gpus_after=after,
        addresses=addresses,
        pause_seconds=pause_seconds,
        reason=reason,
        suspend_first=suspend_first,
    )
