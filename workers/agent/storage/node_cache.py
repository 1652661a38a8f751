"""Cache of files fetched once per node: bundles, environments, data, checkpoints."""

from __future__ import annotations

import hashlib
import os
import shutil
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Callable
from pathlib import Path

# A recently requested entry may not be linked into its box yet.
IN_USE_SECONDS = 600.0


class NodeCache:
    """Entries by kind and name. Thread-safe; each entry is made once."""

    def __init__(self, folder: Path, limit_bytes: int) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._locks: defaultdict[str, threading.Lock] = defaultdict(threading.Lock)
        self._guard = threading.Lock()
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        # Unfinished entries of an earlier run.
        for unfinished in folder.glob("*/.*"):
            _remove(unfinished)
        self._sizes = {entry: _size_bytes(entry) for entry in folder.glob("*/*")}

    def get(self, kind: str, name: str, make: Callable[[Path], None]) -> Path:
        """Return the entry, made by `make(path)` if it is missing. Raises the errors of `make`, without
        leaving anything behind."""
        entry = self._folder / kind / hashlib.sha256(name.encode()).hexdigest()
        with self._guard:
            lock = self._locks[str(entry)]
        with lock:
            if not entry.exists():
                entry.parent.mkdir(exist_ok=True)
                partial = entry.with_name(f".{uuid.uuid4().hex}")
                try:
                    make(partial)
                    partial.rename(entry)
                finally:
                    _remove(partial)
                self._make_room(entry)
            os.utime(entry)
        return entry

    def _make_room(self, newest: Path) -> None:
        """Delete the least recently used entries. Workers that use them have their own links."""
        with self._guard:
            self._sizes[newest] = _size_bytes(newest)
            used = {entry: entry.stat().st_mtime for entry in self._sizes}
            for entry in sorted(self._sizes, key=used.__getitem__):
                if (
                    sum(self._sizes.values()) <= self._limit_bytes
                    or used[entry] > time.time() - IN_USE_SECONDS
                ):
                    return
                _remove(entry)
                del self._sizes[entry]


def link_tree(source: Path, target: Path, *, copy: bool) -> None:
    """Make a cached file or folder visible at `target` by hard links, which survive the cache's clean-up.

    `copy`: copy instead, for a worker that could write into the shared files.
    """
    if source.is_dir():
        shutil.copytree(
            source, target, symlinks=True, dirs_exist_ok=True, copy_function=shutil.copy2 if copy else _link
        )
    else:
        target.parent.mkdir(parents=True, exist_ok=True)
        (shutil.copy2 if copy else _link)(str(source), str(target))


def _link(source: str, target: str) -> None:
    try:
        os.link(source, target, follow_symlinks=False)
    except FileExistsError:
        return
    except OSError:  # another file system, or one without hard links
        shutil.copy2(source, target, follow_symlinks=False)


def _size_bytes(entry: Path) -> int:
    if not entry.is_dir():
        return entry.stat().st_size
    return sum(path.lstat().st_size for path in entry.rglob("*"))


def _remove(entry: Path) -> None:
    if entry.is_dir() and not entry.is_symlink():
        shutil.rmtree(entry)
    else:
        entry.unlink(missing_ok=True)
