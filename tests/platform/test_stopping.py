"""Ctrl-C at a terminal lists the promises that it breaks and asks once; nothing else asks."""

from __future__ import annotations

import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
from collections.abc import Iterator
from pathlib import Path

import pytest

PROJECT = Path(__file__).parents[2]
#: Stands for the supervisor: it stops when its requests say so.
SUPERVISOR = """
import sys, time
from launch.errors import LaunchError
from launch.progress import Progress
from launch.stopping import StopRequests

requests, progress, promises = StopRequests(), Progress(), sys.argv[1]

def look(meanwhile):
    progress.say("looking")
    while promises == "endless":
        meanwhile()
    if promises == "unknown":
        raise LaunchError("the database is away")
    return promises

with requests.caught():
    progress.say("running")
    while not requests.are_to_be_met(look, progress, lambda: None):
        time.sleep(0.01)
progress.say("stopped")
"""
CTRL_C = "\x03"


class Terminal:
    """A foreground process in its own terminal, or one without a terminal."""

    def __init__(self, promises: str, *, at_terminal: bool = True, hang_ups: bool = True) -> None:
        self._main, terminal = pty.openpty()
        self._seen = ""

        def take_terminal() -> None:
            # Independent of how the tests were started.
            signal.signal(signal.SIGHUP, signal.SIG_DFL if hang_ups else signal.SIG_IGN)
            os.setsid()
            fcntl.ioctl(terminal, termios.TIOCSCTTY)

        self.process = subprocess.Popen(
            [sys.executable, "-c", SUPERVISOR, promises],
            cwd=PROJECT,
            stdin=terminal if at_terminal else subprocess.DEVNULL,
            stdout=terminal,
            stderr=terminal,
            preexec_fn=take_terminal if at_terminal else None,
        )
        os.close(terminal)
        self.wait_for("running")

    def wait_for(self, text: str) -> str:
        """Return everything since the last call, up to the text."""
        while text not in self._seen:
            assert select.select([self._main], [], [], 60.0)[0], self._seen
            self._seen += os.read(self._main, 4096).decode()
        before, _, self._seen = self._seen.partition(text)
        return before

    def type(self, text: str) -> None:
        os.write(self._main, text.encode())

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        os.close(self._main)


@pytest.fixture
def terminal(request: pytest.FixtureRequest) -> Iterator[Terminal]:
    arguments = getattr(request, "param", {})
    made = Terminal(**{"promises": "  digits: deadline 11:06", **arguments})
    yield made
    made.close()


def test_ctrl_c_lists_promises_and_stops_only_when_confirmed(terminal: Terminal) -> None:
    terminal.type(CTRL_C)
    assert "digits: deadline 11:06" in terminal.wait_for("[y/N]")
    terminal.type("n\n")
    terminal.wait_for("runs on")
    terminal.type(CTRL_C)
    terminal.wait_for("[y/N]")
    terminal.type("y\n")
    terminal.wait_for("stopped")
    assert terminal.process.wait() == 0


def test_a_second_ctrl_c_stops_at_once(terminal: Terminal) -> None:
    terminal.type(CTRL_C)
    terminal.wait_for("[y/N]")
    terminal.type(CTRL_C)
    terminal.wait_for("stopped")


@pytest.mark.parametrize("terminal", [{"promises": "endless"}], indirect=True)
def test_a_second_ctrl_c_does_not_wait_for_the_promises(terminal: Terminal) -> None:
    terminal.type(CTRL_C)
    terminal.wait_for("looking")
    terminal.type(CTRL_C)
    terminal.wait_for("stopped")


@pytest.mark.parametrize(
    "terminal", [{"promises": ""}, {"promises": "unknown"}, {"at_terminal": False}], indirect=True
)
def test_ctrl_c_asks_no_question_without_promises_or_a_terminal(terminal: Terminal) -> None:
    os.kill(terminal.process.pid, signal.SIGINT)
    assert "[y/N]" not in terminal.wait_for("stopped")


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_other_signals_ask_no_question(terminal: Terminal, number: signal.Signals) -> None:
    os.kill(terminal.process.pid, number)
    assert "[y/N]" not in terminal.wait_for("stopped")


def test_sigterm_needs_no_answer_to_an_open_question(terminal: Terminal) -> None:
    terminal.type(CTRL_C)
    terminal.wait_for("[y/N]")
    os.kill(terminal.process.pid, signal.SIGTERM)
    terminal.wait_for("stopped")


@pytest.mark.parametrize("terminal", [{"hang_ups": False}], indirect=True)
def test_a_hang_up_under_nohup_does_not_stop_the_platform(terminal: Terminal) -> None:
    os.kill(terminal.process.pid, signal.SIGHUP)
    terminal.type(CTRL_C)
    terminal.wait_for("[y/N]")
    assert terminal.process.poll() is None
