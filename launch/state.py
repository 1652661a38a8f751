"""Description of a running platform for other programs: a lock that only one supervisor holds, and a state
file."""

from __future__ import annotations

import fcntl
import json
import os
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from launch.errors import LaunchError
from launch.folders import Folders, write_private


class PlatformLock:
    """Held by the supervisor while it runs; the kernel releases it when the process ends for any reason."""

    def __init__(self, folders: Folders) -> None:
        self._path = folders.run / "lock"
        self._descriptor: int | None = None

    def __enter__(self) -> Self:
        """Take the lock. Raises LaunchError, naming the holder, if another supervisor has it."""
        self._path.parent.mkdir(parents=True, exist_ok=True)
        # Not inherited by children: only the supervisor's own life counts.
        descriptor = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            holder = os.read(descriptor, 20).decode("ascii", "replace").strip() or "unknown"
            os.close(descriptor)
            raise LaunchError(
                f"the platform already runs on {self._path.parent.parent} (process {holder}): "
                f"see `make status`, end it with `make down`"
            ) from None
        os.ftruncate(descriptor, 0)
        os.write(descriptor, f"{os.getpid()}\n".encode("ascii"))
        self._descriptor = descriptor
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._descriptor is not None:
            os.close(self._descriptor)
            self._descriptor = None


def lock_holder(folders: Folders) -> int | None:
    """Return the process id of the supervisor that runs on these folders, or None."""
    try:
        descriptor = os.open(folders.run / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        text = os.read(descriptor, 20).decode("ascii", "replace").strip()
        return int(text) if text.isdigit() else None
    finally:
        os.close(descriptor)
    return None


def state_file(folders: Folders) -> Path:
    return folders.run / "state.json"


def write_state(folders: Folders, state: dict[str, Any]) -> None:
    """Replace the state file. It is private, since addresses may contain a password."""
    write_private(state_file(folders), json.dumps(state, indent=1) + "\n")


def read_state(folders: Folders) -> dict[str, Any] | None:
    """Return the state of the platform that runs on these folders; None if none runs."""
    holder = lock_holder(folders)
    if holder is None:
        return None
    try:
        state: dict[str, Any] = json.loads(state_file(folders).read_text(encoding="utf-8"))
    except (FileNotFoundError, json.JSONDecodeError):
        return None
    return state if state.get("supervisor_pid") == holder else None
