"""Launchers from the agent's side: started, found after a restart, asked to end their workers."""

from __future__ import annotations

import contextlib
import logging
import os
import resource
import shutil
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from workers.agent.confinement.mounts import WRITABLE_BOX_FOLDERS
from workers.agent.confinement.sandbox import Sandbox
from workers.agent.machine import clock, linux
from workers.agent.machine.durable_files import (
    overwrite,
    read_json,
    write_atomically,
    write_json,
    write_json_soon,
)
from workers.agent.processes.launcher import launcher_command
from workers.agent.processes.nursery import Nursery
from workers.agent.processes.runtime_staging import SOURCE_ROOT

logger = logging.getLogger(__name__)

WARMING_NICE = 10
TEXT_CHARACTERS = 2000
#: Room for any number of seconds, padded with blanks.
LEASE_BYTES = 32
_READABLE_BOX_FOLDERS = ("in", "data")


@dataclass(frozen=True)
class ExitStatus:
    """How a worker ended. `reason`: as in exit.json, or the agent's."""

    #: Exit code; None if a signal ended it.
    code: int | None
    #: Number of the signal that ended it; None otherwise.
    signal: int | None
    reason: str
    #: The reason in words.
    message: str

    def to_json(self) -> dict[str, Any]:
        """Return the status as reported to the control plane."""
        return dict(self.__dict__)


class LauncherHandle:
    """One launcher process, never another one with a reused PID."""

    def __init__(
        self, process_id: int, started_ticks: int | None, child: subprocess.Popen[bytes] | None = None
    ) -> None:
        self._process_id = process_id
        self._started_ticks = started_ticks
        self._child = child

    def is_alive(self) -> bool:
        """Whether the launcher still runs."""
        if self._child is not None:
            return self._child.poll() is None
        return (
            self._started_ticks is not None
            and clock.process_start_ticks(self._process_id) == self._started_ticks
        )

    def wait(self, timeout_seconds: float) -> None:
        """Wait for the end of a launcher that this process started. Raises OSError on a timeout."""
        if self._child is not None:
            try:
                self._child.wait(timeout_seconds)
            except subprocess.TimeoutExpired as error:
                self.ask_to_kill()
                raise OSError("the launcher does not end") from error

    def ask_to_kill(self) -> None:
        """Ask the launcher to kill its worker now."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """Kill an unresponsive or frozen launcher; the kernel ends its worker with it."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            # The descriptor pins the process before the check that it is the right one.
            descriptor = os.pidfd_open(self._process_id)
            try:
                if self.is_alive():
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def make_folder(folder: Path, user_id: int | None) -> Path:
    """Create a worker's folder; return its box. Only its `out`, `home` and `tmp` belong to the worker. Raises
    OSError."""
    box = folder / "box"
    folder.mkdir(parents=True, mode=0o711)
    (folder / "root").mkdir()
    for path in (box, *(box / name for name in _READABLE_BOX_FOLDERS)):
        path.mkdir(mode=0o755)
    for name in WRITABLE_BOX_FOLDERS:
        (box / name).mkdir(mode=0o700)
        if user_id is not None:
            os.chown(box / name, user_id, user_id)
    return box


def launch(
    folder: Path,
    *,
    command: list[str],
    environment: dict[str, str],
    sandbox: Sandbox,
    log_limit_bytes: int,
    nice: int,
    notes: Mapping[str, Any] | None = None,
    nursery: Nursery | None = None,
) -> LauncherHandle:
    """Start a launcher for the worker folder, whose lease must be written before. `notes`: for a restarted
    agent.

    `nursery`: forks the launcher, if `command` is `PYTHON -P -m MODULE ...`. Raises OSError.
    """
    write_json(
        folder / "launch.json",
        {
            "command": command,
            "environment": environment,
            "sandbox": sandbox.to_json(),
            "log_limit_bytes": log_limit_bytes,
            "nice": nice,
            **(notes or {}),
        },
    )
    if nursery is not None:
        process_id = nursery.fork_launcher(folder)
        return LauncherHandle(process_id, clock.process_start_ticks(process_id))
    with (folder / "launcher.log").open("ab") as log:
        child = subprocess.Popen(
            launcher_command(sys.executable, SOURCE_ROOT, folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            start_new_session=True,  # survives the agent, and signals to the agent's group
            cwd="/",
            env={"PATH": os.defpath},
        )
    return LauncherHandle(child.pid, clock.process_start_ticks(child.pid), child)


def find_launcher(folder: Path) -> LauncherHandle | None:
    """Return the launcher that an earlier run of the agent started for the folder; None if it is gone or
    never started."""
    value = read_json(folder / "launcher.json")
    if value is None or value["boot"] != clock.machine_boot_id():
        return None
    handle = LauncherHandle(value["pid"], value["started"])
    return handle if handle.is_alive() else None


def read_exit(folder: Path) -> ExitStatus | None:
    """Return what the launcher wrote when the worker ended."""
    value = read_json(folder / "exit.json")
    if value is None:
        return None
    # The status comes from inside the sandbox, so it is untrusted.
    return ExitStatus(
        _small_number(value.get("code")),
        _small_number(value.get("signal")),
        _plain_text(value.get("reason")) or "lost",
        _plain_text(value.get("message")),
    )


def _small_number(value: Any) -> int | None:
    whole = isinstance(value, int) and not isinstance(value, bool)
    return value if whole and abs(value) < 2**31 else None


def _plain_text(value: Any) -> str:
    text = value[:TEXT_CHARACTERS] if isinstance(value, str) else ""
    return text.replace("\0", "\ufffd").encode("utf-8", "replace").decode()


def write_exit(folder: Path, status: ExitStatus) -> None:
    """Write how a worker without a launcher ended."""
    write_json_soon(folder / "exit.json", status.to_json())


def write_lease(folder: Path, deadline_boot_seconds: float) -> None:
    """Set a worker's lease. Raises OSError if there is no room for its first one."""
    content = f"{deadline_boot_seconds!r:<{LEASE_BYTES}}".encode()
    # The file is overwritten in place: the worker's first process has it open, and a full disk must end no
    # worker. All leases have one length, within one page.
    try:
        overwrite(folder / "lease", content)
    except FileNotFoundError:
        write_atomically(folder / "lease", content, durable=False)


def read_lease(folder: Path) -> float:
    """Return a worker's lease; the past if it is unknown."""
    try:
        return float((folder / "lease").read_text())
    except (OSError, ValueError):
        return 0.0


def can_restore_priority() -> bool:
    """Whether a worker that was started at low priority can later be raised to the normal one.

    This requires the capability SYS_NICE, which root in a container often lacks. An ordinary user can do it
    within its limit RLIMIT_NICE (20 means normal priority), because its workers run as itself, unlike root's.
    Otherwise warm workers start at normal priority, one at a time.
    """
    if linux.has_capability(linux.CAP_SYS_NICE):
        return True
    limit = resource.getrlimit(resource.RLIMIT_NICE)[0]
    return os.geteuid() != 0 and (limit == resource.RLIM_INFINITY or limit >= 20)


def restore_priority(folder: Path) -> None:
    """Raise an assigned warm worker to normal priority."""
    value = read_json(folder / "launcher.json")
    if value is not None:
        try:
            # The first process leads the group of the worker and its threads. Setting the same priority may
            # be refused, too.
            if os.getpriority(os.PRIO_PGRP, value["worker_pid"]) != 0:
                os.setpriority(os.PRIO_PGRP, value["worker_pid"], 0)
        except ProcessLookupError:
            return
        except PermissionError as error:
            # An agent with more rights started it: slow work is better than none.
            logger.warning("the worker of %s keeps its low priority: %s", folder, error)


def delete_folder(folder: Path) -> None:
    """Delete a dead worker's folder, following no link in it. Never raises: what cannot be deleted is logged
    and stays."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        # The worker may have removed permissions, or nested folders beyond Python's recursion and path
        # limits.
        for command in (["chmod", "-R", "u+rwx"], ["rm", "-rf"]):
            try:
                done = subprocess.run(
                    [*command, "--", str(folder)],
                    check=False,
                    stdin=subprocess.DEVNULL,
                    capture_output=True,
                    timeout=60,
                )
            except (OSError, subprocess.TimeoutExpired) as error:
                logger.warning("%s cannot be deleted: %s", folder, error)
                return
        if done.returncode:
            told = done.stderr.decode(errors="replace").strip()[-300:]
            logger.warning("%s cannot be deleted: %s", folder, told)
