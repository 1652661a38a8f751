"""Runs Django's management commands as children of the supervisor."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from launch.errors import LaunchError
from launch.folders import PROJECT, Folders
from launch.forking import Fork
from launch.privileges import child_setup
from launch.process import log_tail


class OneShot:
    """A child process that does one thing and ends. Its output goes to a log, or to `output`."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        log: Path,
        *,
        output: IO[bytes] | None = None,
        is_forked: bool = False,
    ) -> None:
        self._name = name
        self._log = log
        self._child: subprocess.Popen[bytes] | Fork
        setup = child_setup(signal.SIGKILL)
        with os.fdopen(os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), "ab") as appended:
            if is_forked:
                self._child = Fork(
                    "manage.py", command, environment, PROJECT, setup,
                    stdout=output or appended, stderr=appended,
                )  # fmt: skip
                return
            self._child = subprocess.Popen(
                command,
                cwd=PROJECT,
                env=dict(environment),
                stdin=subprocess.DEVNULL,
                stdout=output or appended,
                stderr=appended,
                start_new_session=True,
                preexec_fn=setup,
            )

    @property
    def is_running(self) -> bool:
        """Whether it has not ended yet."""
        return self._child.poll() is None

    def wait(self, meanwhile: Callable[[], None], *, timeout_seconds: float) -> None:
        """Wait for its end, calling `meanwhile` repeatedly; kill it if that raises.

        Raises LaunchError, with the end of its log, if it fails or takes too long.
        """
        end = time.monotonic() + timeout_seconds
        try:
            while self._child.poll() is None:
                meanwhile()
                if time.monotonic() > end:
                    raise LaunchError(
                        f"{self._name} took longer than {timeout_seconds:.0f} s (log: {self._log})"
                    )
                time.sleep(0.03)
        finally:
            if self._child.poll() is None:
                self._child.kill()
                self._child.wait()
        if self._child.returncode != 0:
            raise LaunchError(f"{self._name} failed (log: {self._log})\n{log_tail(self._log)}")


class ManagementCommands:
    """Runs `manage.py NAME ...`, calling `meanwhile` repeatedly so that running processes are still
    supervised."""

    def __init__(
        self, folders: Folders, environment: Mapping[str, str], meanwhile: Callable[[], None]
    ) -> None:
        self._log = folders.logs / "commands.log"
        self._environment = environment
        self._meanwhile = meanwhile
        #: Whether commands begin as forks of this process, which has imported what they need.
        self.are_forked = False

    def run(
        self, *arguments: str, secrets: Mapping[str, str] | None = None, timeout_seconds: float = 120.0
    ) -> str:
        """Return the command's standard output. `secrets` are added to its environment.

        Raises LaunchError, with the end of its log, if it fails or takes too long.
        """
        with tempfile.TemporaryFile() as output:
            child = OneShot(
                f"`manage.py {arguments[0]}`",
                [sys.executable, "manage.py", *arguments],
                {**self._environment, **(secrets or {})},
                self._log,
                output=output,
                is_forked=self.are_forked,
            )
            child.wait(self._meanwhile, timeout_seconds=timeout_seconds)
            output.seek(0)
            return output.read().decode("utf-8", "replace")
