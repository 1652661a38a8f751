"""Requests to stop the platform: the promises that a stop breaks, and the confirmation."""

from __future__ import annotations

import os
import select
import signal
import sys
import termios
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import FrameType

from launch.commands import ManagementCommands
from launch.errors import LaunchError
from launch.folders import Folders
from launch.progress import Progress
from launch.services import base_environment

_LOOKING_SECONDS = 20.0


class HurriedError(Exception):
    """The stop was requested again: do not list or ask any more."""


class StopRequests:
    """Signals that request the end. Ctrl-C needs confirmation if it breaks promises; a second one, SIGTERM
    and SIGHUP do not."""

    def __init__(self) -> None:
        self.count = 0
        self._is_confirmed = False

    @contextmanager
    def caught(self) -> Iterator[None]:
        """Count the signals that arrive in this context."""

        def note(number: int, _frame: FrameType | None) -> None:
            self.count += 1
            self._is_confirmed = self._is_confirmed or number != signal.SIGINT

        numbers = [signal.SIGINT, signal.SIGTERM]
        if signal.getsignal(signal.SIGHUP) != signal.SIG_IGN:  # as it is under nohup
            numbers.append(signal.SIGHUP)
        before = {number: signal.signal(number, note) for number in numbers}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def are_to_be_met(
        self, look: Callable[[Callable[[], None]], str], progress: Progress, meanwhile: Callable[[], None]
    ) -> bool:
        """Return whether to stop now. If Ctrl-C is not confirmed, forget it.

        Args:
            look: returns lines that name the promises which would break; calls its argument repeatedly.
            meanwhile: called repeatedly while waiting for an answer.
        """
        known = self.count
        if not known or self._is_confirmed:
            return self._is_confirmed

        def unless_hurried() -> None:
            if self._is_confirmed or self.count > known:
                raise HurriedError
            meanwhile()

        try:
            self._is_confirmed |= is_confirmed(lambda: look(unless_hurried), progress, unless_hurried)
        except HurriedError:
            self._is_confirmed = True
        if not self._is_confirmed:
            self.count = 0
            progress.say("The platform runs on.")
        return self._is_confirmed


def open_promises(folders: Folders, database_url: str, redis_url: str, meanwhile: Callable[[], None]) -> str:
    """Return lines that name the promises which a stop breaks; empty if none is open.

    Raises LaunchError if the platform does not answer.
    """
    environment = base_environment() | {
        "DJANGO_SETTINGS_MODULE": "config.settings",
        "PUNCTUAL_DATA": str(folders.data),
        "DATABASE_URL": database_url,
        "REDIS_URL": redis_url,
    }
    commands = ManagementCommands(folders, environment, meanwhile)
    return commands.run("open_promises", timeout_seconds=_LOOKING_SECONDS).rstrip()


def is_confirmed(look: Callable[[], str], progress: Progress, meanwhile: Callable[[], None]) -> bool:
    """List what a stop breaks and ask once. Returns whether to stop.

    Does not ask if no promise is open, or without a person to answer: no terminal, or in its background.

    Args:
        look: returns lines that name the promises which would break.
        meanwhile: called repeatedly until the user answers.
    """
    try:
        promises = look()
    except LaunchError as error:
        progress.warn(f"it is not known which promises the stop breaks: {error}")
        return True
    if promises:
        progress.say(promises)
    if not promises or not _can_answer():
        return True
    termios.tcflush(sys.stdin, termios.TCIFLUSH)
    progress.say("Stop all the same? [y/N]")
    return _answer(meanwhile).strip().lower() in ("y", "yes")


def _can_answer() -> bool:
    if sys.stdin is None or sys.stdout is None or not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return os.tcgetpgrp(sys.stdin.fileno()) == os.getpgrp()


def _answer(meanwhile: Callable[[], None]) -> str:
    """Return one line from the terminal; empty at its end."""
    descriptor = sys.stdin.fileno()
    while not select.select([descriptor], [], [], 0.1)[0]:
        meanwhile()
    try:
        return os.read(descriptor, 1024).decode("utf-8", "replace")
    except OSError:  # the terminal is gone
        return ""
