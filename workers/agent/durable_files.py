"""Files that are either the old or the new version after a crash, never half of one (standard library
alone)."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any


def write_atomically(path: Path, content: bytes, *, mode: int = 0o600, durable: bool = True) -> None:
    """Replace `path` by `content`. With `durable`, it is on disk when this returns.

    Raises OSError when the folder cannot be written.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.new")
    descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, mode)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            if durable:
                file.flush()
                os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
        raise
    if durable:
        synchronise_folder(path.parent)


def synchronise_folder(folder: Path) -> None:
    """Make renames and deletions inside `folder` durable."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_json(path: Path, value: Any, *, durable: bool = True) -> None:
    """Replace `path` by `value` as JSON, readable by its owner only."""
    write_atomically(path, json.dumps(value, separators=(",", ":")).encode(), durable=durable)


def read_json(path: Path) -> Any:
    """The value stored at `path`, or None when there is no such file. Raises ValueError when it is not
    JSON."""
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
