"""GPUs that nobody may be planned on for now: blocked ones, and those that locked jobs keep."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

import numpy as np

from scheduling.core.placement.buddy_blocks import NOWHERE, Blocks
from scheduling.core.plans.slots import Slots, slot_end
from scheduling.core.question.arrays import TIME_TOLERANCE, rows_where
from scheduling.core.question.columns import JobColumns
from scheduling.core.question.snapshot import FloatArray, IntArray, Snapshot


def blocked_addresses(snapshot: Snapshot, origin: float) -> dict[int, float]:
    """Addresses that are blocked beyond ``origin``, each with the slot boundary at which it is free again, in
    seconds from now."""
    slots = Slots(origin, float(snapshot.settings.slot_seconds))
    until: dict[int, float] = {}
    for block in snapshot.blocked:
        end = float(slot_end(block.until - snapshot.now, slots))
        if end > origin + TIME_TOLERANCE:
            for address in block.addresses:
                until[address] = max(end, until.get(address, 0.0))
    return until


def lock_ends(columns: JobColumns, blocked: Mapping[int, float], slots: Slots) -> FloatArray:
    """Until when each job would keep its GPUs if it is locked: through the next slot.

    A GPU that a locked job waits for may be blocked for longer: someone who is not planned still holds it.
    Until that ends, it is with the one or with the other, and nobody else gets it.
    """
    next_slot = slots.origin + slots.seconds
    until = np.full(columns.locked.size, next_slot)
    for row in rows_where(columns.locked).tolist() if blocked else ():
        ends = [blocked.get(address, next_slot) for address in _addresses(columns, row)]
        until[row] = max([next_slot, *ends])
    return until


def blocked_beside_locked(
    blocked: Mapping[int, float], columns: JobColumns, blocks: Blocks
) -> tuple[IntArray, FloatArray]:
    """Usable blocked addresses in order that no locked job keeps, and until when each is blocked."""
    if not blocked:
        return np.zeros(0, dtype=np.int64), np.zeros(0)
    kept = {address for row in rows_where(columns.locked).tolist() for address in _addresses(columns, row)}
    addresses = sorted(address for address in blocked if address not in kept and _usable(address, blocks))
    return (
        np.array(addresses, dtype=np.int64),
        np.array([blocked[address] for address in addresses], dtype=np.float64),
    )


def gpus_of_locked(columns: JobColumns, until: FloatArray, blocks: Blocks) -> dict[float, int]:
    """How many usable GPUs locked jobs keep, by the time until which they do, each counted once.

    ``until``: see `lock_ends`. A GPU that passes from one locked job to another is listed by both. GPUs of
    lost servers do not count.
    """
    counted: Counter[float] = Counter()
    ends: dict[int, float] = {}
    for row in rows_where(columns.locked).tolist():
        addresses = _addresses(columns, row)
        if not addresses:
            counted[float(until[row])] += int(columns.gpus[row])
        for address in addresses:
            ends[address] = max(ends.get(address, 0.0), float(until[row]))
    counted.update(end for address, end in ends.items() if _usable(address, blocks))
    return dict(sorted(counted.items()))


def _addresses(columns: JobColumns, row: int) -> list[int]:
    found: list[int] = columns.addresses[columns.offsets[row] : columns.offsets[row + 1]].tolist()
    return found


def _usable(address: int, blocks: Blocks) -> bool:
    return 0 <= address < blocks.block_of.size and bool(blocks.block_of[address] != NOWHERE)
