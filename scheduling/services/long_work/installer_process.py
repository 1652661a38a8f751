"""Runs an installer in a process group of its own, which ends with the caller or when it asks for that."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

POLL_SECONDS = 0.5
#: Characters of the output that are shown while it runs.
TAIL_CHARACTERS = 2_000
#: Ends with its parent (PR_SET_PDEATHSIG, SIGKILL), since a killed worker process cannot end the group.
_ENDS_WITH_PARENT = (
    "import ctypes, os, sys; ctypes.CDLL(None).prctl(1, 9, 0, 0, 0); os.execv(sys.argv[1], sys.argv[1:])"
)


def run_installer(
    command: Sequence[str],
    *,
    folder: Path,
    environment: Mapping[str, str],
    log: Path,
    report: Callable[[str], None],
) -> int:
    """Run the command in ``folder`` with its output appended to ``log``. Return its exit status.

    ``report`` is called with the output's end while the command runs. An exception from it ends the whole
    process group and is raised here.
    """
    with log.open("ab") as output:
        process = subprocess.Popen(
            [sys.executable, "-I", "-c", _ENDS_WITH_PARENT, *command],
            cwd=folder,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            stdout=output,
            stderr=subprocess.STDOUT,
            process_group=0,
        )
    try:
        while True:
            try:
                return process.wait(POLL_SECONDS)
            except subprocess.TimeoutExpired:
                report(read_tail(log, folder, TAIL_CHARACTERS))
    except BaseException:
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
        raise


def read_tail(log: Path, folder: Path, characters: int) -> str:
    """Return at most the last ``characters`` of the output, without the folder's path."""
    with log.open("rb") as output:
        size = output.seek(0, os.SEEK_END)
        # A character takes at most four bytes, and paths are removed below.
        output.seek(max(0, size - 8 * characters))
        text = output.read().decode(errors="replace")
    # PostgreSQL stores no NUL.
    return text.replace(str(folder), "").replace("\0", "")[-characters:]
