"""The clock of leases: it cannot be set back and continues while the machine sleeps.

Standard library only: the launcher uses this file without installed packages.
"""

from __future__ import annotations

import time
from pathlib import Path


def boot_time_seconds() -> float:
    """Return the seconds since the machine booted, including suspended time (CLOCK_BOOTTIME)."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


def machine_boot_id() -> str:
    """Return an identifier that changes with every boot; clock readings of two boots are not comparable."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


def process_start_ticks(process_id: int) -> int | None:
    """Return when a process started, in clock ticks since boot; None if it does not exist.

    PIDs are reused, so a PID and its start time together identify a process. A zombie counts as gone, because
    it runs nothing.
    """
    try:
        stat = Path(f"/proc/{process_id}/stat").read_bytes()
    except (FileNotFoundError, ProcessLookupError):
        return None
    # The command name, in parentheses, may contain anything: the fields follow the last parenthesis.
    fields = stat[stat.rindex(b")") + 2 :].split()
    if fields[0] in (b"Z", b"X"):
        return None
    return int(fields[19])
