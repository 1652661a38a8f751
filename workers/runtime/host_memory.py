"""A worker's peak host memory, which its server reserves for each worker.

It is the resident memory, shared memory included, of this process and of the processes it started (loaders).
Files that were only read do not count.
"""

from __future__ import annotations

import contextlib
import os
import re
from pathlib import Path

_PEAK = re.compile(r"^VmHWM:\s+(\d+) kB$", re.MULTILINE)


def forget_peak() -> None:
    """Reset the peak. Where the kernel does not allow that, the peak is that of the process's whole life."""
    with contextlib.suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")


def peak_bytes() -> int:
    """Return the sum of the processes' own peaks of resident memory since `forget_peak`, in bytes."""
    return sum(_peak_of(process_id) for process_id in _own_tree())


def own_peak_bytes() -> int:
    """Return the peak of resident memory of this process alone since `forget_peak`, in bytes."""
    return _peak_of(os.getpid())


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
