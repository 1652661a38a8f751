"""Files that are either the old or the new version after a crash, never partial (standard library only)."""

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

#: Error numbers of a full disk.
FULL = frozenset({errno.ENOSPC, errno.EDQUOT})
#: Largest write of a start with an existing runtime, and the interval of checks for room.
ROOM_BYTES = 1024**2
LOOK_SECONDS = 0.5
#: Content that did not fit on a full disk, by file; for one thread.
_waiting: dict[Path, tuple[bytes, bool]] = {}


def is_full(error: BaseException) -> bool:
    """Whether the error says that the disk or a quota is full, which may change later."""
    return isinstance(error, OSError) and error.errno in FULL


def wait_for_room(folder: Path) -> None:
    """Wait until the disk of a folder has room for a start's writes. Raises OSError for other problems."""
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
    """Replace `path` by `content`. With `durable`, it is on disk on return.

    Raises OSError if the folder cannot be written.
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
    """Replace `path` by `value` as JSON. On a full disk the content waits in memory for `write_waiting`;
    `read_json` returns it meanwhile.

    For content whose loss with this process is better than the loss of the process. Raises OSError for other
    problems.
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
    """Write as much waiting content as fits now. Content for deleted folders is dropped."""
    for path, (content, durable) in list(_waiting.items()):
        try:
            write_atomically(path, content, durable=durable)
        except FileNotFoundError:
            pass
        except OSError:
            return
        _waiting.pop(path, None)


def delete(path: Path) -> None:
    """Delete a file, including waiting content."""
    _waiting.pop(path, None)
    path.unlink(missing_ok=True)


def overwrite(path: Path, content: bytes) -> None:
    """Overwrite the first bytes of a file, which needs no room on a full disk. Readers may see it partially.

    Raises OSError if the file does not exist.
    """
    descriptor = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.pwrite(descriptor, content, 0)
    finally:
        os.close(descriptor)


def read_json(path: Path) -> Any:
    """Return the value stored at `path`, or None without such a file. Raises ValueError if it is not JSON."""
    with suppress(KeyError):
        return json.loads(_waiting[path][0])
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        return None
