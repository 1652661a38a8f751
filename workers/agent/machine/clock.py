"""Time as leases need it: a clock that no administrator sets back and that runs on while the machine sleeps.

Standard library alone: the launcher uses this file without any installed package.
"""

from __future__ import annotations

import time
from pathlib import Path


def boot_time_seconds() -> float:
    """Seconds since the machine booted, suspended time included (CLOCK_BOOTTIME)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def machine_boot_id() -> str:
    """An identifier that changes with every boot; readings of two boots must not be compared."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def process_start_ticks(process_id: int) -> int | None:
    """When a process started, in clock ticks since boot; None when there is no such process.

    A process id alone may have been given to another process since; id and start time together name one
    process. A zombie counts as gone: it runs nothing any more.
    """
    try:
        stat = Path(f"/proc/{process_id}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name stands in parentheses and may hold anything: the fields start after the last one.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])
