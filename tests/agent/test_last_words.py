"""A worker reports its completion and ends: the agent reads the report before it takes the end for a
failure."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from workers.agent.machine import clock
from workers.agent.processes import worker_pool
from workers.agent.processes.worker_pool import WorkerPool
from workers.agent.processes.worker_record import WorkerRecord


class EndedLauncher:
    """Stands for the launcher of a worker that has ended."""

    def is_alive(self) -> bool:
        return False


@pytest.fixture
def pool(tmp_path: Path) -> WorkerPool:
    stub: Any = SimpleNamespace(data=tmp_path, forget=lambda key: None, warm_workers=1)
    accelerator: Any = SimpleNamespace(index=0, cuda=False)
    return WorkerPool(stub, (accelerator,), stub, stub, tmp_path / "runtime")


@pytest.fixture
def record(pool: WorkerPool, tmp_path: Path) -> WorkerRecord:
    launcher: Any = EndedLauncher()
    worker = WorkerRecord("one", tmp_path / "workers" / "one", "r", None, None, launcher=launcher)
    worker.folder.mkdir()
    worker.connected, worker.lease_deadline = True, float("inf")
    pool.records["one"] = worker
    return worker


def test_a_worker_has_exited_only_after_its_connection_closed(pool: WorkerPool, record: WorkerRecord) -> None:
    assert pool.poll() == []
    assert record.alive, "what it said last may still be on its way"
    record.connected = False
    assert pool.poll() == [record]


def test_waiting_for_an_open_connection_is_bounded(
    pool: WorkerPool, record: WorkerRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert pool.poll() == []
    later = clock.boot_time_seconds() + 2 * worker_pool.LAST_WORDS_SECONDS
    monkeypatch.setattr(clock, "boot_time_seconds", lambda: later)
    assert pool.poll() == [record]


def test_warm_workers_that_keep_ending_restart_with_growing_waits(
    pool: WorkerPool, record: WorkerRecord, monkeypatch: pytest.MonkeyPatch
) -> None:
    now = 1000.0
    monkeypatch.setattr(clock, "boot_time_seconds", lambda: now)
    launched_at: list[float] = []
    monkeypatch.setattr(pool, "launch", lambda *_, **__: launched_at.append(now))
    for pause in (worker_pool.FIRST_WARM_PAUSE_SECONDS, 2 * worker_pool.FIRST_WARM_PAUSE_SECONDS):
        record.exit, record.connected = None, False
        assert pool.poll() == [record]
        ended_at = now
        for seconds in (0.9 * pause, pause):
            now = ended_at + seconds
            pool.keep_warm(float("inf"))
        record.folder.mkdir()
    assert launched_at == [1001.0, 1003.0]
