"""A whole platform as a context manager, for tests: `with Platform(settings) as platform: ...`.

It runs the same supervisor as `make run`, in a separate process, with separate data and ports. Tests read its
addresses and processes from it, and may kill or freeze these processes.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import psutil

from launch.credentials import DEMO_USER, OPERATOR_USER, Credentials
from launch.errors import LaunchError
from launch.folders import PROJECT, Folders
from launch.privileges import child_setup
from launch.process import log_tail
from launch.settings import PlatformSettings
from launch.state import lock_holder, read_state
from launch.waiting import wait_until


@dataclass(frozen=True)
class RunningProcess:
    """One supervised process, as it is now."""

    name: str
    #: Process id; None while it does not run.
    pid: int | None
    #: Number of starts after the first.
    restarts: int
    #: File with its output.
    log: Path

    @property
    def children(self) -> list[int]:
        """Process ids of its direct children: Celery's pool, gunicorn's workers."""
        if self.pid is None:
            return []
        try:
            return [child.pid for child in psutil.Process(self.pid).children()]
        except psutil.NoSuchProcess:
            return []

    def kill(self) -> None:
        """Send SIGKILL to the process alone, not to its children."""
        self.signal(signal.SIGKILL)

    def signal(self, number: signal.Signals) -> None:
        """Send a signal to the process. Raises LaunchError while it is being restarted."""
        if self.pid is None:
            raise LaunchError(f"{self.name} is being restarted")
        os.kill(self.pid, number)


class Platform:
    """A platform for one test. It can be started again after `stop` or `kill`, since its data stays."""

    def __init__(self, settings: PlatformSettings) -> None:
        self.settings = settings
        self.folders = Folders(settings.data)
        self._child: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.stop()

    # --- life -----------------------------------------------------------------------------------------------

    def start(self, *, timeout_seconds: float = 900.0) -> None:
        """Start it and wait until it is ready.

        Raises LaunchError, with its output, if it ends before or takes longer. Call from the main thread.
        """
        self.settings.data.mkdir(parents=True, exist_ok=True)
        file = self.settings.data / "settings.json"
        file.write_text(self.settings.to_json(), encoding="utf-8")
        with self.terminal.open("ab") as terminal:
            self._child = subprocess.Popen(
                [sys.executable, "-m", "launch", "up", "--settings", str(file)],
                cwd=PROJECT,
                stdin=subprocess.DEVNULL,
                stdout=terminal,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                preexec_fn=child_setup(signal.SIGTERM),
            )
        child = self._child
        wait_until(lambda: self.is_ready or child.poll() is not None, timeout_seconds=timeout_seconds)
        if not self.is_ready:
            self.stop()
            raise LaunchError(f"the platform did not get ready:\n{log_tail(self.terminal, 40)}")

    def stop(self, *, timeout_seconds: float = 90.0) -> None:
        """Stop it in order, as `make down` does."""
        self._end(signal.SIGTERM, timeout_seconds)

    def kill(self) -> None:
        """Send SIGKILL to the supervisor; the processes that it started must end by themselves."""
        self._end(signal.SIGKILL, 10.0)

    def _end(self, number: signal.Signals, timeout_seconds: float) -> None:
        child, self._child = self._child, None
        if child is None:
            return
        child.send_signal(number)
        try:
            child.wait(timeout_seconds)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()
            raise LaunchError(f"the platform did not stop in time:\n{log_tail(self.terminal, 40)}") from None

    @property
    def terminal(self) -> Path:
        """Output of the supervisor."""
        return self.settings.data / "terminal.log"

    @property
    def is_ready(self) -> bool:
        """Whether everything is up."""
        state = read_state(self.folders)
        return state is not None and bool(state["ready"])

    @property
    def is_running(self) -> bool:
        """Whether a supervisor runs on this data, ready or not."""
        return lock_holder(self.folders) is not None

    # --- state ----------------------------------------------------------------------------------------------

    @property
    def state(self) -> dict[str, Any]:
        """The supervisor's state file. Raises LaunchError if it does not run."""
        state = read_state(self.folders)
        if state is None:
            raise LaunchError("the platform does not run")
        return state

    @property
    def web_url(self) -> str:
        return str(self.state["web_url"])

    @property
    def agent_url(self) -> str:
        return str(self.state["agent_url"])

    @property
    def stream_url(self) -> str:
        return str(self.state["stream_url"])

    @property
    def database_url(self) -> str:
        return str(self.state["database_url"])

    @property
    def redis_url(self) -> str:
        return str(self.state["redis_url"])

    @property
    def demo_login(self) -> tuple[str, str]:
        """Name and password of the demo user."""
        return DEMO_USER, Credentials.load(self.folders.secrets).demo_password

    @property
    def operator_login(self) -> tuple[str, str]:
        """Name and password of the operator."""
        return OPERATOR_USER, Credentials.load(self.folders.secrets).operator_password

    @property
    def processes(self) -> dict[str, RunningProcess]:
        """Every process by name: `web`, `agent-api`, `streams`, `celery-planner`, `beat`, `agent-node-1`,
        …"""
        return {
            name: RunningProcess(name, found["pid"], found["restarts"], Path(found["log"]))
            for name, found in self.state["processes"].items()
        }

    def process(self, name: str) -> RunningProcess:
        """Return one process as it is now. Raises KeyError for an unknown name."""
        return self.processes[name]

    def wait_restarted(self, before: RunningProcess, *, timeout_seconds: float = 30.0) -> RunningProcess:
        """Wait until a killed process runs again under another id. Returns it. Raises LaunchError on
        timeout."""

        def runs_again() -> bool:
            now = self.process(before.name)
            return now.pid is not None and now.pid != before.pid

        if not wait_until(runs_again, timeout_seconds=timeout_seconds):
            raise LaunchError(f"{before.name} was not restarted within {timeout_seconds:.0f} s")
        return self.process(before.name)

    def remove_sockets(self) -> None:
        """Remove a socket folder outside the data folder, once the platform has stopped."""
        sockets = self.folders.sockets
        if sockets.is_relative_to(Path(tempfile.gettempdir())) and not sockets.is_relative_to(
            self.settings.data
        ):
            for entry in sockets.iterdir() if sockets.exists() else ():
                entry.unlink()
            with contextlib.suppress(FileNotFoundError):
                sockets.rmdir()
