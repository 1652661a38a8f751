"""States in files and host memory: failures lose nothing, limits hold, threads do not disturb each other."""

from __future__ import annotations

import errno
import os
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from workers.runtime.failures import WorkerFailureError
from workers.runtime.tiers.files import ExpertFiles
from workers.runtime.tiers.host_cache import HostCache

HANG_SECONDS = 60.0


def cache_of(folder: Path, states: int, entries: int, elements: int = 50) -> HostCache:
    files = ExpertFiles(folder / "states", 2, elements)
    for expert in range(states):
        files.write((0, expert), torch.full((2, elements), float(expert)))
    return HostCache(files, entries)


def read(cache: HostCache, expert: int) -> float:
    values = torch.empty(cache.files.rows, cache.files.elements)
    cache.files.read((0, expert), values)
    assert (values == values[0, 0]).all()
    return float(values[0, 0])


def change(cache: HostCache, expert: int, value: float) -> None:
    with cache.state((0, expert)) as held:
        held.values.fill_(value)
        held.is_dirty = True


def change_and_evict(cache: HostCache) -> None:
    change(cache, 0, 7.0)
    with cache.state((0, 1)):
        pass


@pytest.mark.parametrize("entries", [0, 1])
def test_a_failed_write_loses_no_change(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, entries: int
) -> None:
    cache = cache_of(tmp_path, 2, entries)
    with monkeypatch.context() as patch:

        def fail(*_: Any) -> None:
            raise OSError(errno.ENOSPC, "No space left on device")

        patch.setattr(os, "replace", fail)
        with pytest.raises(WorkerFailureError, match="No space left") as caught:
            change_and_evict(cache)
    assert caught.value.reason == "storage_failed"
    # The file has the last complete state, and memory has the change.
    assert read(cache, 0) == 0.0
    with cache.state((0, 0)) as held:
        assert (held.values == 7.0).all()
    cache.flush()
    assert (read(cache, 0), read(cache, 1)) == (7.0, 1.0)
    assert not list(cache.files.folder.glob("*.part"))


@pytest.mark.parametrize("damage", [b"", b"\x55" * 8])
def test_a_damaged_file_is_an_error(tmp_path: Path, damage: bytes) -> None:
    cache = cache_of(tmp_path, 1, 1)
    with cache.files.path((0, 0)).open("r+b") as file:
        file.seek(100)
        file.write(damage) or file.truncate()
    for attempt in (lambda: read(cache, 0), lambda: cache.files.map((0, 0))):
        with pytest.raises(WorkerFailureError, match=r"damaged|cannot be read"):
            attempt()
    with pytest.raises(WorkerFailureError), cache.state((0, 0)):
        pass


def test_files_never_exceed_their_limit(tmp_path: Path) -> None:
    files = ExpertFiles(tmp_path / "states", 1, 1000, max_bytes=9000)
    for expert in (0, 1, 1):
        files.write((0, expert), torch.zeros(1, 1000))
    with pytest.raises(WorkerFailureError, match=r"12192 bytes of disk; the worker may take 9000"):
        files.write((0, 2), torch.zeros(1, 1000))
    assert files.bytes_on_disk == 8128


def test_states_fetched_ahead_stay_until_they_are_used(tmp_path: Path) -> None:
    """A fetched state has the count 0. Without a pin, the next fetch would evict it."""
    cache = cache_of(tmp_path, 6, 3)
    change(cache, 5, 8.0)
    assert [cache.fetch_ahead((0, expert)) for expert in (0, 1, 2)] == [True, True, True]
    assert read(cache, 5) == 8.0
    assert not cache.fetch_ahead((0, 3))
    with cache.state((0, 4)) as held:
        assert not held.is_cached
    with cache.state((0, 0)) as held:
        assert held.is_cached
    assert cache.counts().hits == 1
    assert cache.drop_ahead([(0, 0), (0, 1)]) == 1
    with cache.state((0, 4)) as held:
        assert held.is_cached


def test_threads_keep_all_changes(tmp_path: Path) -> None:
    """Four threads change two states each, with room for three."""
    cache = cache_of(tmp_path, 8, 3)
    failures: list[BaseException] = []

    def work(thread: int) -> None:
        try:
            for turn in range(40):
                with cache.state((0, 2 * thread + turn % 2)) as held:
                    held.values += 1.0
                    held.is_dirty = True
                ahead = (0, 3 * turn % 8)
                cache.fetch_ahead(ahead)
                cache.drop_ahead([ahead])
        except BaseException as error:  # noqa: BLE001 - it is reported below
            failures.append(error)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(HANG_SECONDS)
        assert not thread.is_alive()
    assert not failures
    cache.flush()
    assert [read(cache, expert) for expert in range(8)] == [expert + 20.0 for expert in range(8)]
