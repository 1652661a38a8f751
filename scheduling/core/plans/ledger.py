"""The timeline that all plans but one leave, made in one pass: for planning many promises anew in turn.

To take every plan out of the capacity again for each of them moves most of the timeline for most of their
pieces. Here the begins and ends of all pieces are kept in the order of time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.kernels import ZERO, kernel, leaf
from scheduling.core.plans.timeline import EVERYTHING, PROMISES, Timeline
from scheduling.core.question.arrays import TIME_TOLERANCE, Plans
from scheduling.core.question.snapshot import FloatArray, IntArray

MOST_ENTRIES = 1 << 24
"""Of one plan: what tells the turns of two rows apart."""


class Ledger(NamedTuple):
    """Begins and ends of the pieces of promised plans, by ``time`` and then by ``turn``: the place in which
    `occupied` comes to them, row by row.

    ``row``: whose plan; ``gpus``: that come free then, negative where they are taken.
    """

    time: FloatArray
    turn: IntArray
    row: IntArray
    gpus: IntArray


@leaf
def _write_entries(plans: Plans, row: int, ledger: Ledger, written: int) -> int:
    """Write the begins and ends of one plan from position ``written`` on; returns the position after them."""
    for piece in range(plans.length[row] - 1):
        gpus = plans.gpus[row, piece]
        begin = max(plans.time[row, piece], plans.reserved_until[row])
        end = plans.time[row, piece + 1]
        if gpus == 0 or end <= begin + TIME_TOLERANCE:
            continue
        for side in range(2):
            ledger.time[written] = begin if side == 0 else end
            ledger.turn[written] = row * MOST_ENTRIES + 2 * piece + side
            ledger.row[written] = row
            ledger.gpus[written] = -gpus if side == 0 else gpus
            written += 1
    return written


@kernel
def _room(entries: int) -> Ledger:
    return Ledger(
        np.empty(entries),
        np.empty(entries, dtype=np.int64),
        np.empty(entries, dtype=np.int64),
        np.empty(entries, dtype=np.int64),
    )


@kernel
def ledger_of(plans: Plans, rows: IntArray) -> Ledger:
    """The entries of the plans of ``rows``, which ascend."""
    pieces = 0
    for row in rows:
        pieces += plans.length[row]
    unsorted = _room(2 * pieces)
    written = ZERO
    for row in rows:
        written = _write_entries(plans, row, unsorted, written)
    time, turn, row_of, gpus = unsorted
    order = np.argsort(time[:written], kind="mergesort")
    return Ledger(time[order], turn[order], row_of[order], gpus[order])


@kernel
def replanned(ledger: Ledger, plans: Plans, row: int) -> Ledger:
    """The ledger with the plan that one row has now."""
    new = _room(2 * plans.length[row])
    count = _write_entries(plans, row, new, ZERO)
    merged = _room(ledger.time.size + count)
    written = _merge(ledger, new, count, row, merged)
    time, turn, row_of, gpus = merged
    return Ledger(time[:written], turn[:written], row_of[:written], gpus[:written])


@leaf
def _merge(ledger: Ledger, new: Ledger, count: int, row: int, merged: Ledger) -> int:
    """Write the entries of all rows but one and ``count`` new ones in order; returns how many there are."""
    written = 0
    taken = 0
    for entry in range(ledger.time.size + 1):
        last = entry == ledger.time.size
        if not last and ledger.row[entry] == row:
            continue
        while taken < count and (
            last or (new.time[taken], new.turn[taken]) < (ledger.time[entry], ledger.turn[entry])
        ):
            _copy_entry(new, taken, merged, written)
            taken += 1
            written += 1
        if not last:
            _copy_entry(ledger, entry, merged, written)
            written += 1
    return written


@leaf
def _copy_entry(source: Ledger, entry: int, target: Ledger, place: int) -> None:
    target.time[place] = source.time[entry]
    target.turn[place] = source.turn[entry]
    target.row[place] = source.row[entry]
    target.gpus[place] = source.gpus[entry]


@kernel
def left_by_others(opened: Timeline, ledger: Ledger, row: int) -> tuple[Timeline, bool]:
    """What the plans of all rows but one leave of a timeline, and whether that is sure.

    It is exactly what `occupied` finds, but where instants follow each other so closely that their order
    decides which of them are one: then it is not sure, and nothing.
    """
    room = opened.pieces + ledger.time.size
    times = np.empty(room)
    free = np.empty((2, room), dtype=np.int64)
    pieces = _write_pieces(opened, ledger, row, times, free)
    return Timeline(times, free, pieces), pieces > 0


@leaf
def _write_pieces(opened: Timeline, ledger: Ledger, row: int, times: FloatArray, free: IntArray) -> int:
    """Write the pieces of `left_by_others`; returns how many there are, 0 where that is not sure."""
    old_times, old_free, old_count = opened
    entry_time = ledger.time
    entry_row = ledger.row
    size = entry_time.size
    entry = 0
    old = 0
    held = 0
    pieces = 0
    # Whatever comes before the timeline does, begins with it.
    at = old_times[0]
    while entry < size and (entry_row[entry] == row or entry_time[entry] < at - TIME_TOLERANCE):
        if entry_row[entry] != row:
            held -= ledger.gpus[entry]
        entry += 1
    while True:
        # One instant: the old breakpoint, if there is one, and all entries within the tolerance of the first.
        latest = at
        named = old < old_count and old_times[old] <= at + TIME_TOLERANCE
        name = old_times[old] if named else at
        first_turn = -1
        if named:
            latest = max(latest, old_times[old])
            old += 1
        while entry < size and (entry_row[entry] == row or entry_time[entry] <= at + TIME_TOLERANCE):
            if entry_row[entry] != row:
                held -= ledger.gpus[entry]
                latest = max(latest, entry_time[entry])
                if not named and (first_turn < 0 or ledger.turn[entry] < first_turn):
                    first_turn = ledger.turn[entry]
                    name = entry_time[entry]
            entry += 1
        times[pieces] = name
        free[EVERYTHING, pieces] = old_free[EVERYTHING, old - 1] - held
        free[PROMISES, pieces] = old_free[PROMISES, old - 1] - held
        pieces += 1
        if old == old_count and entry == size:
            return pieces
        at = old_times[old] if old < old_count else entry_time[entry]
        if entry < size:
            at = min(at, entry_time[entry])
        if at <= latest + TIME_TOLERANCE:
            return 0
