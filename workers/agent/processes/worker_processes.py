"""Launchers as the agent sees them: started, found again after a restart, told to end their workers."""

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
#: Any number of seconds fits, and blanks around it mean nothing.
LEASE_BYTES = 32
_READABLE_BOX_FOLDERS = ("in", "data")


@dataclass(frozen=True)
class ExitStatus:
    """How a worker ended. `reason`: what made it end, in the words of exit.json or of the agent."""

    code: int | None
    signal: int | None
    reason: str
    message: str

    def to_json(self) -> dict[str, Any]:
        """As reported to the control plane."""
        return dict(self.__dict__)


class LauncherHandle:
    """One launcher: the very process, never another one that got its id later."""

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
        """Wait for the end of a launcher that this process started. Raises OSError when it takes too long."""
        if self._child is not None:
            try:
                self._child.wait(timeout_seconds)
            except subprocess.TimeoutExpired as error:
                self.ask_to_kill()
                raise OSError("the launcher does not end") from error

    def ask_to_kill(self) -> None:
        """Let the launcher kill its worker now."""
        self._send(signal.SIGTERM)

    def kill(self) -> None:
        """End a launcher that does not hear, a frozen one too: the kernel ends its worker with it."""
        self._send(signal.SIGKILL)

    def _send(self, number: signal.Signals) -> None:
        with contextlib.suppress(ProcessLookupError):
            # The descriptor names the process; only then is it checked that it is the right one.
            descriptor = os.pidfd_open(self._process_id)
            try:
                if self.is_alive():
                    signal.pidfd_send_signal(descriptor, number)
            finally:
                os.close(descriptor)


def make_folder(folder: Path, user_id: int | None) -> Path:
    """Make a worker's folder; returns its box. Only `out`, `home` and `tmp` of it belong to the worker.
    Raises OSError."""
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
    """Start a launcher for the worker folder, whose lease must be written already. `notes` are for a
    restarted agent.

    A `nursery` forks it, where `command` is `PYTHON -P -m MODULE ...`. Raises OSError.
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
            start_new_session=True,  # it survives the agent, and signals for the agent's group
            cwd="/",
            env={"PATH": os.defpath},
        )
    return LauncherHandle(child.pid, clock.process_start_ticks(child.pid), child)


def find_launcher(folder: Path) -> LauncherHandle | None:
    """The launcher that an earlier run of the agent started for the folder; None when it is gone or never
    came up."""
    value = read_json(folder / "launcher.json")
    if value is None or value["boot"] != clock.machine_boot_id():
        return None
    handle = LauncherHandle(value["pid"], value["started"])
    return handle if handle.is_alive() else None


def read_exit(folder: Path) -> ExitStatus | None:
    """What the launcher wrote when the worker was gone."""
    value = read_json(folder / "exit.json")
    if value is None:
        return None
    # How a worker ended is told from inside its sandbox.
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
    """Say how a worker ended that no launcher spoke for."""
    write_json_soon(folder / "exit.json", status.to_json())


def write_lease(folder: Path, deadline_boot_seconds: float) -> None:
    """Let the worker live until then. Raises OSError where there is no room for a worker's first one."""
    content = f"{deadline_boot_seconds!r:<{LEASE_BYTES}}".encode()
    # The file stays the one that the worker's first process has open, and a full disk ends no worker: all
    # leases are of one length, in one page of memory.
    try:
        overwrite(folder / "lease", content)
    except FileNotFoundError:
        write_atomically(folder / "lease", content, durable=False)


def read_lease(folder: Path) -> float:
    """Until when the worker may live; the past when that is not known."""
    try:
        return float((folder / "lease").read_text())
    except (OSError, ValueError):
        return 0.0


def can_restore_priority() -> bool:
    """Whether a worker that was started at low priority can be raised to the normal one later.

    Who has the capability SYS_NICE can; root in a container often has not. An ordinary user can where its
    limit RLIMIT_NICE says so (20 stands for the normal priority): its workers are its own, as root's are not.
    Otherwise warm workers start at normal priority, one at a time.
    """
    if linux.has_capability(linux.CAP_SYS_NICE):
        return True
    limit = resource.getrlimit(resource.RLIMIT_NICE)[0]
    return os.geteuid() != 0 and (limit == resource.RLIM_INFINITY or limit >= 20)


def restore_priority(folder: Path) -> None:
    """Give a warm worker the normal priority: it has work now."""
    value = read_json(folder / "launcher.json")
    if value is not None:
        try:
            # The first process leads the group that the worker and its threads are in. Asking for what it has
            # is refused, too.
            if os.getpriority(os.PRIO_PGRP, value["worker_pid"]) != 0:
                os.setpriority(os.PRIO_PGRP, value["worker_pid"], 0)
        except ProcessLookupError:
            return
        except PermissionError as error:
            # An agent that had more rights began it: slow work is better than none.
            logger.warning("the worker of %s keeps its low priority: %s", folder, error)


def delete_folder(folder: Path) -> None:
    """Delete a dead worker's folder, following no link in it. Never raises: what cannot be deleted is logged
    and stays."""
    try:
        shutil.rmtree(folder)
    except (OSError, RecursionError):
        # The worker may have closed its own folders, or nested them deeper than Python's recursion and any
        # path go.
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
