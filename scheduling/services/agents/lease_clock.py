"""The clock of the leases: the database's clock, watched for jumps with CLOCK_BOOTTIME, which cannot be set.

All processes of the control plane read the same database, so their own clocks may differ. The database's
clock may be set forward or back at any time. Each check of the leases therefore compares how far it and the
checking machine's CLOCK_BOOTTIME have advanced.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime, timedelta
from pathlib import Path

from django.db import connection
from django.db.models import DateTimeField, Func, Value

#: A smaller difference is no jump: the two clocks are not read at one instant. Far below the fence's margin.
JUMP_SECONDS = 0.5
#: A slower reading is too imprecise and is repeated, up to this number of tries.
_SLOW_SECONDS, _TRIES = 0.2, 3
#: Machines whose clocks are remembered.
MOST_MACHINES = 8


@dataclass(frozen=True)
class Reading:
    """The database's clock and, at the same moment, this machine's seconds since the boot `boot_id`."""

    now: datetime
    boot_id: str
    boot_seconds: float


@dataclass(frozen=True)
class Watch:
    """State kept between checks. ``offsets``: for each boot id, by how many seconds the database's clock was
    ahead of the machine's seconds since boot.
    """

    checked_at: datetime | None
    hold_until: datetime | None
    offsets: Mapping[str, float]


def clock() -> Func | Value:
    """Return the database's clock as an expression: its time when the statement runs."""
    return Func(function="clock_timestamp", output_field=DateTimeField())


def now() -> datetime:
    """Return the time of the database's clock."""
    with connection.cursor() as cursor:
        cursor.execute("select clock_timestamp()")
        (found,) = cursor.fetchone()
    return found


def read() -> Reading:
    """Read both clocks."""
    boot_id = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="ascii").strip()
    for _ in range(_TRIES):
        before = time.clock_gettime(time.CLOCK_BOOTTIME)
        found = now()
        after = time.clock_gettime(time.CLOCK_BOOTTIME)
        if after - before < _SLOW_SECONDS:
            break
    return Reading(found, boot_id, (before + after) / 2)


def gap_seconds(before: Watch, reading: Reading, jump: float) -> float:
    """Return the seconds since the previous check, without the clock's jump; 0 at the first check."""
    if before.checked_at is None:
        return 0.0
    return (reading.now - before.checked_at).total_seconds() - jump


def look(
    before: Watch, reading: Reading, suspect_seconds: float, fence_seconds: float
) -> tuple[Watch, float]:
    """Return the state after this check, and by how many seconds the clock was set since the previous one.

    After a gap between two checks longer than the suspicion time, agents may look silent only because no
    reports were taken: no lease expires for one fence period. The same holds for the first check from another
    machine, which cannot tell whether the clock was set.
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
