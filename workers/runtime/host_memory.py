"""How much host memory a worker has taken at most: what its server reserves for each of them.

What is resident counts, memory that is shared with others included, of this process and of all that it
started (loaders). Files that were only read do not.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def forget_peak() -> None:
    """Begin to count anew, where the kernel allows it; else the peak is that of the whole life."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """The most that was resident at once since `forget_peak`, in bytes; each process by its own peak."""
    return sum(_peak_of(process_id) for process_id in _own_tree())


def _own_tree() -> list[int]:
    found = [os.getpid()]
    for process_id in found:
        found.extend(_children(process_id))
    return found


def _children(process_id: int) -> list[int]:
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in os.listdir(f"/proc/{process_id}/task"):
            with contextlib.suppress(OSError):
                text = Path(f"/proc/{process_id}/task/{thread}/children").read_text()
                children += [int(child) for child in text.split()]
    return children


def _peak_of(process_id: int) -> int:
    try:
        match = _PEAK.search(Path(f"/proc/{process_id}/status").read_text())
    except OSError:
        return 0
    return 1024 * int(match[1]) if match else 0
