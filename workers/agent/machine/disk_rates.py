"""The disk bandwidth that one worker may use for states of experts (decision 0033)."""

from __future__ import annotations

import os
import time
from pathlib import Path

from workers.agent.machine.configuration import Configuration

PROBE_BYTES = 16 << 20
_PIECE_BYTES = 1 << 20
_RATE_FILE = "disk-bytes-per-second"


def disk_rate_of_worker(configuration: Configuration, gpus: int) -> float | None:
    """Return bytes per second: as configured, else an equal share of the disk for each GPU.

    The rate of the disk is measured once and kept in the agent's folder, so an agent that starts again beside
    busy workers computes the same share. Emulated devices have no limit unless it is configured, since files
    of tiers take no emulated time.
    """
    if configuration.worker_disk_bytes_per_second is not None:
        return float(configuration.worker_disk_bytes_per_second)
    if configuration.emulate is not None:
        return None
    return _kept_rate(configuration.data) / max(1, gpus)


def _kept_rate(data: Path) -> float:
    path = data / _RATE_FILE
    try:
        return float(path.read_text())
    except (OSError, ValueError):
        rate = measure_disk(data)
    part = path.with_suffix(".part")
    part.write_text(str(rate))
    os.replace(part, path)
    return rate


def measure_disk(folder: Path) -> float:
    """Return the bytes per second at which a disk writes a file for good or reads it: the slower of both."""
    path = folder / "disk-probe"
    content = os.urandom(_PIECE_BYTES)
    try:
        began = time.perf_counter()
        with path.open("wb", buffering=0) as file:
            for _ in range(PROBE_BYTES // _PIECE_BYTES):
                file.write(content)
            os.fsync(file.fileno())
        written = time.perf_counter()
        with path.open("rb", buffering=0) as file:
            # Read from the disk, not from the kernel's memory.
            os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            before_reading = time.perf_counter()
            while file.read(_PIECE_BYTES):
                pass
        read = time.perf_counter()
    finally:
        path.unlink(missing_ok=True)
    return PROBE_BYTES / max(written - began, read - before_reading)
