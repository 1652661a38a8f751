"""A worker's share of a disk does not shrink as its neighbours use theirs."""

from __future__ import annotations

import shutil
from pathlib import Path
from types import SimpleNamespace

import pytest

from workers.agent.machine.disk_shares import disk_of_worker

FREE = 8_000_000


def test_space_of_workers_tiered_states_counts_as_free(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    free = FREE
    monkeypatch.setattr(shutil, "disk_usage", lambda _path: SimpleNamespace(free=free))
    # Two workers of each of two GPUs share nine tenths.
    assert disk_of_worker(tmp_path, 2) == 1_800_000
    states = tmp_path / "workers" / "abc" / "box" / "tmp" / "expert-states-1"
    states.mkdir(parents=True)
    (states / "layer-0-expert-0.state").write_bytes(bytes(1 << 20))
    (states.parent / "other").write_bytes(bytes(1 << 20))
    free -= 1 << 20
    assert disk_of_worker(tmp_path, 2) == 1_800_000
