"""A worker's memory on its host: of all its processes, since the last reset."""

from __future__ import annotations

import subprocess
import sys

from workers.runtime.host_memory import forget_peak, peak_bytes

MIB = 1024**2
TAKES_64_MIB = "data = bytearray(64 * 2**20); print('taken', flush=True); input()"


def test_peak_memory_counts_until_it_expires() -> None:
    forget_peak()
    before = peak_bytes()
    taken = bytearray(128 * MIB)
    assert taken[-1] == 0
    assert peak_bytes() >= before + 100 * MIB
    del taken
    assert peak_bytes() >= before + 100 * MIB
    forget_peak()
    assert peak_bytes() < before + 100 * MIB


def test_memory_of_loading_processes_counts() -> None:
    forget_peak()
    before = peak_bytes()
    loader = subprocess.Popen(
        [sys.executable, "-c", TAKES_64_MIB], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    assert loader.stdout is not None
    assert loader.stdout.readline() == b"taken\n"
    assert peak_bytes() >= before + 64 * MIB
    loader.communicate(b"\n")
    assert peak_bytes() < before + 64 * MIB
