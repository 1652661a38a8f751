"""The clock that leases are by: the database's, watched for jumps by one that nobody sets.

All processes of the control plane read the same database, so their own clocks may differ. Its clock may be
set, forward or back, while agents are silent or not: each look at the leases compares how far it and the
looking machine's CLOCK_BOOTTIME have gone.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from django.db import connection

#: Less is no jump: the two clocks are not read at one instant. Far below the fence's margin.
JUMP_SECONDS = 0.5
#: A reading that took longer says little about when it was; it is tried again so often.
_SLOW_SECONDS, _TRIES = 0.2, 3
#: Machines whose clocks are remembered.
MOST_MACHINES = 8


@dataclass(frozen=True)
class Reading:
    """The database's clock and, at the same moment, this machine's seconds since its boot of that id."""

    now: datetime
    boot_id: str
    boot_seconds: float


@dataclass(frozen=True)
class Watch:
    """What is kept from one look to the next. ``offsets``: by a machine's boot, how far the database's clock
    was ahead of its seconds since then."""

    checked_at: datetime | None
    hold_until: datetime | None
    offsets: Mapping[str, float]


def now() -> datetime:
    """The database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("select clock_timestamp()")
        (found,) = cursor.fetchone()
    return found


def read() -> Reading:
    """Both clocks."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    for _ in range(_TRIES):
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        found = now()
        after = time.clock_gettime(time.CLOCK_BOOTTIME)
        if after - before < _SLOW_SECONDS:
            break
    return Reading(found, boot_id, (before + after) / 2)


def gap_seconds(before: Watch, reading: Reading, jump: float) -> float:
    """Seconds since the look before, without those by which the clock was set; 0 at the first look."""
    if before.checked_at is None:
        return 0.0
    return (reading.now - before.checked_at).total_seconds() - jump


def look(
    before: Watch, reading: Reading, suspect_seconds: float, fence_seconds: float
) -> tuple[Watch, float]:
    """What to keep of this look, and by how many seconds the clock was set since the one before.

    After a gap between two looks that is longer than the suspicion time, agents may have been silent only
    because nobody listened: no lease expires for one fence period. The same holds for the first look from
    another machine, which cannot tell whether the clock was set.
    """
    offset = reading.now.timestamp() - reading.boot_seconds
    known = before.offsets.get(reading.boot_id)
    jump = 0.0 if known is None else offset - known
    passed = None if before.checked_at is None else (reading.now - before.checked_at).total_seconds()
    if known is None and passed is not None and passed < 0.0:
        jump = passed
    if abs(jump) < JUMP_SECONDS:
        jump = 0.0
    others = {} if jump else dict(list(before.offsets.items())[-MOST_MACHINES + 1 :])
    offsets = {**others, reading.boot_id: offset if jump or known is None else known}
    fence = timedelta(seconds=fence_seconds)
    hold_until = before.hold_until
    if hold_until is not None and jump:
        hold_until = min(hold_until + timedelta(seconds=jump), reading.now + fence)
    is_stranger = known is None and bool(before.offsets)
    if is_stranger or passed is None or gap_seconds(before, reading, jump) > suspect_seconds:
        hold_until = reading.now + fence
    return Watch(reading.now, hold_until, offsets), jump
