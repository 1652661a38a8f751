"""A node downloads each file once and evicts files when there are too many."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from workers.agent.storage.node_cache import NodeCache, link_tree


def writer(content: bytes, written: list[bytes]) -> Callable[[Path], None]:
    def make(path: Path) -> None:
        written.append(content)
        path.write_bytes(content)

    return make


def test_an_entry_is_made_once_even_by_many_threads(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, 1 << 20)
    written: list[bytes] = []
    threads = [
        threading.Thread(target=lambda: cache.get("data", "url", writer(b"x", written))) for _ in range(8)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert written == [b"x"]


def test_a_failed_entry_leaves_no_file_and_is_made_again(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path, 1 << 20)
    written: list[bytes] = []

    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise OSError("the source is gone")

    with pytest.raises(OSError, match="gone"):
        cache.get("data", "url", fail)
    assert cache.get("data", "url", writer(b"whole", written)).read_bytes() == b"whole"


def test_least_recently_used_entry_is_evicted_and_its_links_survive(tmp_path: Path) -> None:
    cache = NodeCache(tmp_path / "cache", 25)
    written: list[bytes] = []
    entries = {}
    for age, name in ((3000, "old"), (2000, "used"), (1000, "young")):
        entries[name] = cache.get("data", name, writer(name.encode() * 2, written))
        os.utime(entries[name], (os.stat(entries[name]).st_mtime - age,) * 2)
    link_tree(entries["old"], tmp_path / "box/old", copy=False)
    cache.get("data", "used", writer(b"", written))
    cache.get("data", "new", writer(b"n" * 12, written))
    assert not entries["old"].exists()
    assert entries["used"].exists()
    assert (tmp_path / "box/old").read_bytes() == b"oldold"


def test_a_copy_does_not_share_its_bytes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "folder").mkdir(parents=True)
    (source / "folder/file").write_text("original")
    for copy in (True, False):
        target = tmp_path / f"copy-{copy}"
        link_tree(source, target, copy=copy)
        assert (target / "folder/file").samefile(source / "folder/file") is not copy
        link_tree(source, target, copy=copy)  # repeated, as after a restart
