"""The free capacity beside all promised plans but one, computed in one pass.

The pause budget plans many promises anew, one after the other. Rebuilding the timeline plan by plan for each
of them would be slow. The ledger keeps the begins and ends of all pieces sorted by time instead.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.compiling import ZERO, kernel, leaf
from scheduling.core.plans.timeline import EVERYTHING, PROMISES, Timeline
from scheduling.core.question.arrays import TIME_TOLERANCE, Plans
from scheduling.core.question.snapshot import FloatArray, IntArray

MOST_ENTRIES = 1 << 24
"""Most entries of one plan; the turns of row i begin at i times this number."""


class Ledger(NamedTuple):
    """Begins and ends of the pieces of promised plans, sorted by ``time``, then by ``turn``."""

    #: When the piece begins or ends, in seconds from now.
    time: FloatArray
    #: Position of the entry in the order in which `occupied` handles the plans, row by row.
    turn: IntArray
    #: Row of the plan.
    row: IntArray
    #: GPUs that come free, negative for GPUs that are taken.
    gpus: IntArray


@leaf
def _write_entries(plans: Plans, row: int, ledger: Ledger, written: int) -> int:
    """Write the entries of one plan from position ``written`` on; returns the position after the last one."""
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
    """The ledger of the plans of ``rows``, which are ascending."""
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
    """The ledger with the entries of ``row`` replaced by those of its present plan."""
    new = _room(2 * plans.length[row])
    count = _write_entries(plans, row, new, ZERO)
    merged = _room(ledger.time.size + count)
    written = _merge(ledger, new, count, row, merged)
    time, turn, row_of, gpus = merged
    return Ledger(time[:written], turn[:written], row_of[:written], gpus[:written])


@leaf
def _merge(ledger: Ledger, new: Ledger, count: int, row: int, merged: Ledger) -> int:
    """Merge the entries of all rows but ``row`` with ``count`` new ones; returns the number of entries."""
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
    """The free capacity of ``opened`` beside the plans of all rows but ``row``.

    Returns (timeline, True), equal to what `occupied` finds. Returns (an empty timeline, False) if a chain of
    instants lies so close together that it depends on their order which of them count as one.
    """
    room = opened.pieces + ledger.time.size
    times = np.empty(room)
    free = np.empty((2, room), dtype=np.int64)
    pieces = _write_pieces(opened, ledger, row, times, free)
    return Timeline(times, free, pieces), pieces > 0


@leaf
def _write_pieces(opened: Timeline, ledger: Ledger, row: int, times: FloatArray, free: IntArray) -> int:
    """Write the pieces of `left_by_others`; returns their number, 0 if the result would depend on order."""
    old_times, old_free, old_count = opened
    entry_time = ledger.time
    entry_row = ledger.row
    size = entry_time.size
    entry = 0
    old = 0
    held = 0
    pieces = 0
    # Entries before the timeline's first breakpoint count from that breakpoint on.
    at = old_times[0]
    while entry < size and (entry_row[entry] == row or entry_time[entry] < at - TIME_TOLERANCE):
        if entry_row[entry] != row:
            held -= ledger.gpus[entry]
        entry += 1
    while True:
        # One instant is an old breakpoint, if there is one here, and all entries within the tolerance of it.
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
