"""Python processes that begin as a fork of this one, with everything imported that they share.

Celery's workers, their clock and management commands import the same modules, which takes each of them a
second of a processor and 50 MB. The supervisor imports these modules once. A fork has them at once and shares
their memory until it writes to it.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import runpy
import signal
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import IO, Any

from launch.errors import LaunchError
from launch.privileges import name_process

#: Its function of that name imports what workers and commands share. It is named and not imported here:
#: everything else of the supervisor starts the platform from outside.
_PRELOADING = "config.preloading", "import_workers"
#: Environment variables that these imports set.
_SET_BY_IMPORTS: dict[str, str] = {}
#: Between two looks at a process that is waited for.
_LOOK_SECONDS = 0.02
#: Signals for which the supervisor has handlers, and what a new interpreter does with them.
_AT_FIRST: Mapping[signal.Signals, Any] = {
    signal.SIGINT: signal.default_int_handler,
    signal.SIGTERM: signal.SIG_DFL,
    signal.SIGHUP: signal.SIG_DFL,
    signal.SIGCHLD: signal.SIG_DFL,
}


def import_shared(environment: Mapping[str, str]) -> None:
    """Import what forked processes share, with the settings of ``environment``. Raises LaunchError."""
    own = dict(os.environ)
    _set_variables(environment)
    module, function = _PRELOADING
    try:
        getattr(import_module(module), function)()
        _SET_BY_IMPORTS.update(os.environ.items() - environment.items())
    except Exception as error:
        raise LaunchError(f"the control plane cannot be imported: {error}") from error
    finally:
        _set_variables(own)


class Fork:
    """A forked process, with the methods of `subprocess.Popen` that the supervisor uses."""

    def __init__(
        self,
        name: str,
        command: Sequence[str],
        environment: Mapping[str, str],
        working_folder: Path,
        setup: Callable[[], None],
        *,
        stdout: IO[bytes],
        stderr: IO[bytes] | None = None,
    ) -> None:
        """Fork.

        Args:
            name: what `top` and `ps` call it.
            command: this interpreter with ``-m MODULE`` or a script, and its arguments.
            setup: called first in the child.
            stderr: ``stdout`` by default.
        """
        self.args = list(command)
        self.returncode: int | None = None
        reading, writing = os.pipe()
        with os.fdopen(reading, "rb") as is_set_up:
            with os.fdopen(writing, "wb") as nothing_written:
                self.pid = os.fork()
                if self.pid == 0:
                    name_process(name)
                    _become(
                        self.args, environment, working_folder, setup, stdout, stderr or stdout,
                        nothing_written,
                    )  # fmt: skip
            # Its group, which is killed with it, exists once the child lets go of the pipe, and it obeys
            # signals.
            is_set_up.read()

    def poll(self) -> int | None:
        """Return its exit status, negative for a signal; None while it runs."""
        if self.returncode is None:
            ended, status = os.waitpid(self.pid, os.WNOHANG)
            if ended:
                self.returncode = os.waitstatus_to_exitcode(status)
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        """Wait for its end. Raises subprocess.TimeoutExpired after ``timeout`` seconds."""
        end = None if timeout is None else time.monotonic() + timeout
        while (code := self.poll()) is None:
            if end is not None and timeout is not None and time.monotonic() > end:
                raise subprocess.TimeoutExpired(self.args, timeout)
            time.sleep(_LOOK_SECONDS)
        return code

    def send_signal(self, number: int) -> None:
        """Send a signal, unless it has ended."""
        if self.poll() is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """Send SIGKILL."""
        self.send_signal(signal.SIGKILL)


def _become(
    command: Sequence[str],
    environment: Mapping[str, str],
    working_folder: Path,
    setup: Callable[[], None],
    stdout: IO[bytes],
    stderr: IO[bytes],
    nothing_written: IO[bytes],
) -> None:
    """Turn the forked child into the process of ``command``; close ``nothing_written`` once it leads its
    session and obeys signals. Does not return."""
    code = 1
    atexit._clear()  # what the supervisor would do at its end
    try:
        os.setsid()
        setup()
        for number, handler in _AT_FIRST.items():
            signal.signal(number, handler)
        nothing_written.close()
        _take_over(stdout.fileno(), stderr.fileno())
        os.chdir(working_folder)
        _set_variables({**environment, **_SET_BY_IMPORTS})
        _run(command)
        code = 0
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else int(end.code is not None)
        if isinstance(end.code, str):
            sys.stderr.write(f"{end.code}\n")
    except BaseException:  # noqa: BLE001 - whatever happens, the child must not go on as the supervisor
        traceback.print_exc()
    finally:
        try:
            atexit._run_exitfuncs()
            sys.stdout.flush()
            sys.stderr.flush()
        finally:
            os._exit(code)


def _take_over(stdout: int, stderr: int) -> None:
    """Make these files the standard output and error, and let go of all other files of the supervisor.

    Their numbers stay taken: an object of the supervisor that is collected later closes its number, which
    must not be that of a new file.
    """
    others = [number for number in map(int, os.listdir("/proc/self/fd")) if number > 2]
    # Away from the numbers that are overwritten.
    kept = [os.open(os.devnull, os.O_RDONLY), os.dup(stdout), os.dup(stderr)]
    for number, file in enumerate(kept):
        os.dup2(file, number)
        os.close(file)
    for number in others:
        with contextlib.suppress(OSError):  # that of the list itself
            os.fstat(number)
            os.dup2(0, number)
    sys.stdout, sys.stderr = (
        os.fdopen(number, "w", buffering=1, encoding="utf-8", errors="backslashreplace", closefd=False)
        for number in (1, 2)
    )


def _set_variables(variables: Mapping[str, str]) -> None:
    """Make these the environment variables, in place of all others."""
    os.environ.clear()
    os.environ.update(variables)


def _run(command: Sequence[str]) -> None:
    if command[1] == "-m":
        sys.argv = list(command[2:])
        runpy.run_module(command[2], run_name="__main__", alter_sys=True)
    else:
        sys.argv = list(command[1:])
        runpy.run_path(command[1], run_name="__main__")
