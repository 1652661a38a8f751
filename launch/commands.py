"""Running Django's management commands as children of the supervisor."""

from __future__ import annotations

import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Mapping

from launch.errors import LaunchError
from launch.folders import PROJECT, Folders
from launch.privileges import child_setup
from launch.process import log_tail


class ManagementCommands:
    """Runs `manage.py NAME ...`, calling `meanwhile` so that the processes already running are looked after."""

    def __init__(
        self, folders: Folders, environment: Mapping[str, str], meanwhile: Callable[[], None]
    ) -> None:
        self._log = folders.logs / "commands.log"
        self._environment = environment
        self._meanwhile = meanwhile

    def run(
        self, *arguments: str, secrets: Mapping[str, str] | None = None, timeout_seconds: float = 120.0
    ) -> str:
        """Answer what the command printed. `secrets` are more variables for its environment.

        Raises LaunchError, with the end of its log, if it fails or takes too long.
        """
        with tempfile.TemporaryFile() as output, self._log.open("ab") as log:
            self._log.chmod(0o600)
            child = subprocess.Popen(
                [sys.executable, "manage.py", *arguments],
                cwd=PROJECT,
                env={**self._environment, **(secrets or {})},
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=log,
                start_new_session=True,
                preexec_fn=child_setup(signal.SIGKILL),
            )
            try:
                self._wait(child, arguments[0], timeout_seconds)
            finally:
                if child.poll() is None:
                    child.kill()
                    child.wait()
            output.seek(0)
            text = output.read().decode("utf-8", "replace")
        if child.returncode != 0:
            shown = "\n".join(part for part in (text.strip()[-2000:], log_tail(self._log)) if part)
            raise LaunchError(f"`manage.py {arguments[0]}` failed (log: {self._log})\n{shown}")
        return text

    def _wait(self, child: subprocess.Popen[bytes], name: str, timeout_seconds: float) -> None:
        end = time.monotonic() + timeout_seconds
        while child.poll() is None:
            self._meanwhile()
            if time.monotonic() > end:
                raise LaunchError(
                    f"`manage.py {name}` took longer than {timeout_seconds:.0f} s (log: {self._log})"
                )
            time.sleep(0.03)
