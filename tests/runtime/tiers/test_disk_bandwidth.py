"""Workers of one server together never exceed its disk's bandwidth."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from workers.runtime.tiers.disk_share import DiskShare
from workers.runtime.tiers.files import ExpertFiles


@dataclass
class Time:
    """A clock that sleeping advances."""

    at: float = 100.0

    def now(self) -> float:
        return self.at

    def sleep(self, seconds: float) -> None:
        self.at += seconds


#: Of one job: its share's weight, and its operations (seconds before it, seconds that the disk takes, bytes).
OPERATIONS = st.lists(
    st.tuples(st.floats(0.0, 3.0), st.floats(0.0, 1.0), st.integers(0, 10_000)), min_size=1, max_size=8
)


@given(st.lists(OPERATIONS, min_size=2, max_size=4), st.floats(1.0, 1e6))
def test_jobs_on_one_server_never_overcommit_the_disk(
    jobs: list[list[tuple[float, float, int]]], disk_bytes_per_second: float
) -> None:
    ends: list[tuple[float, int]] = []
    for operations in jobs:
        time = Time()
        share = DiskShare(
            bytes_per_second=disk_bytes_per_second / len(jobs), clock=time.now, sleep=time.sleep
        )
        for idle_seconds, disk_seconds, size in operations:
            time.sleep(idle_seconds)
            with share.moving(size):
                time.sleep(disk_seconds)
            ends.append((time.at, size))
    moved = 0
    for at, size in sorted(ends):
        moved += size
        assert moved <= disk_bytes_per_second * (at - 100.0) * (1 + 1e-9) + 1e-6


def test_a_slow_disk_is_not_slowed_down_further() -> None:
    time = Time()
    share = DiskShare(bytes_per_second=10.0, clock=time.now, sleep=time.sleep)
    for _ in range(2):
        with share.moving(10):
            time.sleep(3.0)
    assert time.at == 106.0


@pytest.mark.parametrize("operation", ["read", "write"])
def test_files_take_the_time_of_the_share(tmp_path: Path, operation: str) -> None:
    time = Time()
    share = DiskShare(clock=time.now, sleep=time.sleep)
    files = ExpertFiles(tmp_path / "states", 2, 5, disk=share)
    values = torch.zeros(2, 5)
    files.write((0, 0), values)
    share.bytes_per_second = 4.0
    getattr(files, operation)((0, 0), values)
    assert time.at == 100.0 + 10.0
