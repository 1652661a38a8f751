"""One process of the platform: its start, ready gate, restarts and end."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO

from launch.errors import LaunchError
from launch.forking import Fork
from launch.privileges import Identity, child_setup

_FIRST_BACKOFF_SECONDS = 0.2
_LONGEST_BACKOFF_SECONDS = 15.0
#: After running this long, a process counts as recovered: its next crash is restarted with the shortest
#: delay.
_STABLE_SECONDS = 30.0
#: Niceness of processes that come first.
_FIRST_NICENESS = -5
_LARGEST_LOG_BYTES = 20 * 1024 * 1024


def _always() -> bool:
    return True


def _nothing() -> None:
    return None


@dataclass(frozen=True)
class ProcessSpecification:
    """What to run and how to supervise it."""

    name: str
    #: Program and arguments.
    command: Sequence[str]
    #: All environment variables of the process.
    environment: Mapping[str, str]
    #: File for its output.
    log: Path
    working_folder: Path
    #: Called before every start, to clean up after a crash.
    prepare: Callable[[], None] = _nothing
    is_ready: Callable[[], bool] = _always
    ready_timeout_seconds: float = 60.0
    stop_signal: signal.Signals = signal.SIGTERM
    #: Time to end after the signal; then its whole process group is killed.
    stop_grace_seconds: float = 10.0
    #: Signal that the kernel sends it when the supervisor dies.
    death_signal: signal.Signals = signal.SIGKILL
    #: False for PostgreSQL, which gets SIGQUIT first and SIGKILL only if that does not end it.
    may_be_killed: bool = True
    #: User that it runs as if it refuses root.
    identity: Identity = field(default_factory=Identity)
    #: Whether it begins as a fork of the supervisor, which has imported what it needs (`forking.py`).
    is_forked: bool = False
    #: Whether it has priority over everything else on this machine, including users' workers, because
    #: promises depend on it. Needs the permission to lower niceness.
    comes_first: bool = False
    #: File into which it repeatedly writes the monotonic clock; None: only its end is noticed.
    heartbeat: Path | None = None
    #: Longest time without a heartbeat, including before the first one.
    heartbeat_timeout_seconds: float = 120.0


class ManagedProcess:
    """A process kept running. Not thread-safe: the supervisor's only thread starts, checks and ends it."""

    def __init__(self, specification: ProcessSpecification) -> None:
        self.specification = specification
        self.restarts = 0
        self._child: subprocess.Popen[bytes] | Fork | None = None
        self._started_at = 0.0
        self._backoff_seconds = _FIRST_BACKOFF_SECONDS
        self._restart_at: float | None = None

    @property
    def name(self) -> str:
        return self.specification.name

    @property
    def pid(self) -> int | None:
        """Its process id, or None while it does not run."""
        return self._child.pid if self._child is not None else None

    @property
    def is_running(self) -> bool:
        return self._child is not None and self._child.poll() is None

    def start(self) -> None:
        """Fork it. Raises LaunchError if its program cannot be run."""
        specification = self.specification
        specification.prepare()
        cut_log(specification.log)
        with _open_log(specification.log) as log:
            try:
                self._child = _begun(specification, log)
            except (OSError, subprocess.SubprocessError) as error:
                raise LaunchError(f"{specification.name} cannot be started: {error}") from error
        if specification.comes_first:
            _put_first(self._child.pid)
        self._started_at = time.monotonic()
        self._restart_at = None

    def wait_ready(self, keep_others: Callable[[], None] = _nothing) -> None:
        """Wait for the ready gate, calling `keep_others` meanwhile.

        Raises LaunchError, with the end of its log, if it ends before or does not get ready in time.
        """
        end = time.monotonic() + self.specification.ready_timeout_seconds
        while not self.specification.is_ready():
            if not self.is_running:
                raise LaunchError(
                    f"{self.name} ended while starting (log: {self.specification.log})\n{self.log_tail()}"
                )
            if time.monotonic() > end:
                raise LaunchError(
                    f"{self.name} was not ready within {self.specification.ready_timeout_seconds:.0f} s "
                    f"(log: {self.specification.log})\n{self.log_tail()}"
                )
            keep_others()
            time.sleep(0.03)

    def keep_running(self) -> str | None:
        """Restart it if it ended or hangs, with increasing delay while it keeps ending soon. Returns what
        happened, or None."""
        now = time.monotonic()
        if self.is_running:
            silent = self._silent_seconds(now)
            if silent <= self.specification.heartbeat_timeout_seconds:
                return None
            # The next call notices and reports its end.
            self._kill_group(signal.SIGKILL)
            return f"{self.name} has given no sign of life for {silent:.0f} s and is killed"
        if self._child is not None:
            code = self._child.returncode
            self._kill_group(signal.SIGKILL)
            self._child = None
            if now - self._started_at > _STABLE_SECONDS:
                self._backoff_seconds = _FIRST_BACKOFF_SECONDS
            self._schedule_restart(now)
            return f"{self.name} ended ({_describe(code)}), restarting"
        if self._restart_at is not None and now >= self._restart_at:
            self.restarts += 1
            try:
                self.start()
            except LaunchError as error:
                self._schedule_restart(now)
                return str(error)
        return None

    def _silent_seconds(self, now: float) -> float:
        """Return the seconds since its last heartbeat; 0 if none is expected."""
        if self.specification.heartbeat is None:
            return 0.0
        try:
            beat = float(self.specification.heartbeat.read_text(encoding="ascii"))
        except (OSError, ValueError):
            beat = 0.0
        return now - max(beat, self._started_at)

    def _schedule_restart(self, now: float) -> None:
        self._restart_at = now + self._backoff_seconds
        self._backoff_seconds = min(self._backoff_seconds * 2, _LONGEST_BACKOFF_SECONDS)

    def hang_up(self) -> None:
        """Send SIGHUP, at which a server like gunicorn replaces its workers."""
        if self.is_running and self._child is not None:
            self._child.send_signal(signal.SIGHUP)

    def ask_to_stop(self) -> None:
        """Send the stop signal, once; `finish` waits."""
        if self.is_running and self._child is not None:
            # SIGCONT lets a process stopped by SIGSTOP handle the signal.
            self._child.send_signal(self.specification.stop_signal)
            self._child.send_signal(signal.SIGCONT)

    def finish(self, *, grace_seconds: float | None = None) -> bool:
        """Wait for it to end; after its grace period, kill it and its children. Return whether it ended
        without being killed."""
        child = self._child
        if child is None:
            return True
        grace = self.specification.stop_grace_seconds if grace_seconds is None else grace_seconds
        ended_itself = _wait(child, grace)
        if not ended_itself:
            if not self.specification.may_be_killed:
                child.send_signal(signal.SIGQUIT)
                _wait(child, 5.0)
            self._kill_group(signal.SIGKILL)
            child.wait()
        else:
            self._kill_group(signal.SIGKILL)
        self._child = None
        return ended_itself

    def log_tail(self, lines: int = 15) -> str:
        """Return the last lines of its log."""
        return log_tail(self.specification.log, lines)

    def _kill_group(self, sent: signal.Signals) -> None:
        """Signal the remaining processes of its group: children of a killed parent hold ports and queues."""
        if self._child is not None:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(self._child.pid, sent)


def _begun(specification: ProcessSpecification, log: IO[bytes]) -> subprocess.Popen[bytes] | Fork:
    setup = child_setup(specification.death_signal, identity=specification.identity)
    if specification.is_forked:
        return Fork(
            specification.name, specification.command, specification.environment,
            specification.working_folder, setup, stdout=log,
        )  # fmt: skip
    arguments: dict[str, object] = {"cwd": specification.working_folder}
    arguments |= specification.identity.popen_arguments()
    child: subprocess.Popen[bytes] = subprocess.Popen(
        specification.command,
        env=dict(specification.environment),
        stdin=subprocess.DEVNULL,
        stdout=log,
        stderr=subprocess.STDOUT,
        start_new_session=True,
        preexec_fn=setup,
        **arguments,  # type: ignore[call-overload]
    )
    return child


def log_tail(log: Path, lines: int = 15) -> str:
    """Return the last lines of a log file, indented; empty if there is none."""
    try:
        with log.open("rb") as file:
            file.seek(max(0, log.stat().st_size - 20_000))
            text = file.read().decode("utf-8", "replace")
    except FileNotFoundError:
        return ""
    return "\n".join(f"    {line}" for line in text.splitlines()[-lines:])


def cut_log(log: Path) -> None:
    """Limit the size of a log: move its content to `<log>.1` and truncate the open file."""
    try:
        if log.stat().st_size < _LARGEST_LOG_BYTES:
            return
    except FileNotFoundError:
        return
    content = log.read_bytes()
    previous = log.with_name(f"{log.name}.1")
    descriptor = os.open(previous, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    with os.fdopen(descriptor, "wb") as file:
        file.write(content)
    os.truncate(log, 0)


def _open_log(log: Path) -> IO[bytes]:
    # Append mode: after `cut_log`, every writer continues at the new end.
    return os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab")


def _wait(child: subprocess.Popen[bytes] | Fork, timeout_seconds: float) -> bool:
    try:
        child.wait(timeout_seconds)
    except subprocess.TimeoutExpired:
        return False
    return True


def _put_first(session: int) -> None:
    """Raise its priority; threads and children that it makes from now on inherit it."""
    with contextlib.suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, session, _FIRST_NICENESS)
        # Where the kernel groups processes by session, niceness counts only within a group.
        Path(f"/proc/{session}/autogroup").write_text(str(_FIRST_NICENESS), encoding="ascii")


def _describe(code: int | None) -> str:
    if code is None:
        return "unknown"
    if code < 0:
        with contextlib.suppress(ValueError):
            return signal.Signals(-code).name
    return f"exit code {code}"
