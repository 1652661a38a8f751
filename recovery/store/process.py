"""The store as a program, started by an agent and independent of it (standard library only)."""

from __future__ import annotations

import fcntl
import logging
import os
import signal
import sys
from pathlib import Path

from recovery.store.server import StoreServer


def command(interpreter: str, source_root: Path, folder: Path, limit_bytes: int) -> list[str]:
    """Return the command that starts the store of `folder`; `source_root` holds the package `recovery`."""
    code = (
        "import sys; sys.path.insert(0, sys.argv[1]); from recovery.store.process import main; "
        "main(sys.argv[2], int(sys.argv[3]))"
    )
    return [interpreter, "-I", "-S", "-c", code, str(source_root), str(folder), str(limit_bytes)]


def kill(folder: Path) -> None:
    """Kill the store of a folder, if one runs. Raises OSError."""
    try:
        lock = os.open(folder / "lock", os.O_RDWR | os.O_CLOEXEC)
    except FileNotFoundError:
        return
    try:
        held_by = os.pidfd_open(int(os.read(lock, 32) or b"0"))
    except (ValueError, ProcessLookupError):
        os.close(lock)
        return
    try:
        # The lock's holder has written its PID into the file, so a held lock means that the PID is valid.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        signal.pidfd_send_signal(held_by, signal.SIGKILL)
    finally:
        os.close(held_by)
        os.close(lock)


def main(folder: str, limit_bytes: int) -> None:
    """Run the store of a folder; return at once if one is running."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(message)s", stream=sys.stderr)
    # Signals that end the agent must not end the store; it ends on the agent's request or its long absence.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGPIPE):
        signal.signal(number, signal.SIG_IGN)
    lock = os.open(Path(folder) / "lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return
    os.ftruncate(lock, 0)
    os.write(lock, str(os.getpid()).encode())
    StoreServer(Path(folder), limit_bytes).run()
