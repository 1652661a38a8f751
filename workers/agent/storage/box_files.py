"""Reading and deleting workers' files without following links that the worker made.

The agent may be root and the worker hostile, so a path inside the box is never followed by name alone.
"""

from __future__ import annotations

import logging
import os
import shutil
import stat
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

logger = logging.getLogger(__name__)

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# Non-blocking, so that a named pipe in place of a file cannot block the agent.
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
FILES_LIMIT = 1000


class BoxFileError(Exception):
    """An announced file does not exist, or is not a plain file."""


@contextmanager
def open_output_folder(box: Path) -> Iterator[int]:
    """Open the box's out/ folder. Raises OSError."""
    outer = os.open(box, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        folder = os.open("out", _FOLDER, dir_fd=outer)
    finally:
        os.close(outer)
    try:
        yield folder
    finally:
        os.close(folder)


def open_file(folder: int, name: str) -> BinaryIO:
    """Open the plain file `name` directly inside the folder. Raises BoxFileError."""
    try:
        descriptor = os.open(name, _FILE, dir_fd=folder)
    except OSError as error:
        raise BoxFileError(f"{name}: {error.strerror}") from error
    if not stat.S_ISREG(os.fstat(descriptor).st_mode):
        os.close(descriptor)
        raise BoxFileError(f"{name} is not a plain file")
    return os.fdopen(descriptor, "rb")


def list_files(folder: int, name: str) -> list[str]:
    """Return the paths of plain files below `name`, relative to it. Links and other kinds are left out.

    Raises BoxFileError if `name` is not a folder or contains too many files.
    """
    found: list[str] = []
    try:
        for path, _, files, descriptor in os.fwalk(name, dir_fd=folder, follow_symlinks=False):
            for file in files:
                mode = os.stat(file, dir_fd=descriptor, follow_symlinks=False).st_mode
                if stat.S_ISREG(mode) and file.isprintable():
                    found.append(os.path.relpath(os.path.join(path, file), name))
                if len(found) > FILES_LIMIT:
                    raise BoxFileError(f"{name} holds more than {FILES_LIMIT} files")
    except OSError as error:
        raise BoxFileError(f"{name}: {error.strerror}") from error
    except RecursionError as error:
        raise BoxFileError(f"{name} is nested too deeply") from error
    if not found:
        raise BoxFileError(f"{name} is not a folder with files")
    return sorted(found)


@contextmanager
def open_nested_file(folder: int, path: str) -> Iterator[BinaryIO]:
    """Open a plain file some folders below `folder`, following no link on the way. Raises BoxFileError."""
    *parents, name = path.split("/")
    opened: list[int] = []
    try:
        current = folder
        for parent in parents:
            current = _open_folder(current, parent)
            opened.append(current)
        with open_file(current, name) as file:
            yield file
    finally:
        for descriptor in opened:
            os.close(descriptor)


def _open_folder(parent: int, name: str) -> int:
    try:
        return os.open(name, _FOLDER, dir_fd=parent)
    except OSError as error:
        raise BoxFileError(f"{name}: {error.strerror}") from error


def delete(box: Path, name: str) -> None:
    """Delete a file or folder directly inside out/, if it exists and can be deleted.

    Never raises, because the worker may change the folder meanwhile. Leftovers are deleted with the box.
    """
    try:
        with open_output_folder(box) as folder:
            if stat.S_ISDIR(os.stat(name, dir_fd=folder, follow_symlinks=False).st_mode):
                shutil.rmtree(name, dir_fd=folder)
            else:
                os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return
    except (OSError, ValueError, RecursionError) as error:
        logger.warning("%.100a is not deleted: %s", name, error)
