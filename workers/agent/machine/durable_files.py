"""Files that are either the old or the new version after a crash, never half of one (standard library
alone)."""

from __future__ import annotations

import errno
import json
import logging
import os
import time
from contextlib import suppress
from pathlib import Path
from typing import Any

logger = logging.getLogger(__name__)

#: What a full disk says.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
#: What a start writes at most where the runtime is there already, and how often room for it is looked for.
ROOM_BYTES = 1024**2
LOOK_SECONDS = 0.5
#: What a full disk did not take, by file; for one thread.
_waiting: dict[Path, tuple[bytes, bool]] = {}


def is_full(error: BaseException) -> bool:
    """Whether it says that the disk, or a quota on it, is full: it may have room again later."""
    return isinstance(error, OSError) and error.errno in FULL


def wait_for_room(folder: Path) -> None:
    """Wait until the disk of a folder takes as much as a start writes. Raises OSError for other troubles."""
    probe, told = folder / ".room", False
    while folder.is_dir():
        try:
            with probe.open("wb") as file:
                os.posix_fallocate(file.fileno(), 0, ROOM_BYTES)
            return
        except OSError as error:
            if not is_full(error):
                raise
            if not told:
                logger.warning("the disk of %s is full: the start waits for room", folder)
            told = True
        finally:
            probe.unlink(missing_ok=True)
        time.sleep(LOOK_SECONDS)


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


def write_json_soon(path: Path, value: Any, *, durable: bool = True) -> None:
    """Replace `path` by `value` as JSON. What a full disk does not take waits in memory for `write_waiting`,
    and `read_json` gives it meanwhile.

    For what is better lost with this process than the process with it. Raises OSError for other troubles.
    """
    content = json.dumps(value, separators=(",", ":")).encode()
    try:
        write_atomically(path, content, durable=durable)
    except OSError as error:
        if not is_full(error):
            raise
        if path not in _waiting:
            logger.warning("the disk is full: %s waits", path)
        _waiting[path] = (content, durable)
    else:
        _waiting.pop(path, None)


def write_waiting() -> None:
    """Write what a full disk did not take, as far as it takes it now. What lies in a deleted folder is
    dropped."""
    for path, (content, durable) in list(_waiting.items()):
        try:
            write_atomically(path, content, durable=durable)
        except FileNotFoundError:
            pass
        except OSError:
            return
        _waiting.pop(path, None)


def delete(path: Path) -> None:
    """Delete a file, also while it waits to be written."""
    _waiting.pop(path, None)
    path.unlink(missing_ok=True)


def overwrite(path: Path, content: bytes) -> None:
    """Write over the first bytes of a file, which takes no room on a full disk. Readers may see half of it.

    Raises OSError when there is no such file.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, content, 0)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> Any:
    """The value stored at `path`, or None when there is no such file. Raises ValueError when it is not
    JSON."""
    with suppress(KeyError):
        return json.loads(_waiting[path][0])
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
