"""The supervisor's output never stops it, whatever happens to its readers."""

from __future__ import annotations

import errno
import io
import os
import pty
import termios
from collections.abc import Iterator
from contextlib import suppress

import pytest

from launch.progress import Progress


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    ends = os.pipe()
    yield ends
    for end in ends:
        with suppress(OSError):
            os.close(end)


def test_a_reader_that_closes_the_pipe_stops_no_process(pipe: tuple[int, int]) -> None:
    read, write = pipe
    output = os.fdopen(write, "w")
    progress = Progress(output)
    with progress.step("PostgreSQL"):
        os.close(read)
    progress.say("Punctual runs")
    output.close()  # as at the exit: no later write fails there


def test_closing_the_terminal_stops_no_process() -> None:
    main, terminal = pty.openpty()
    output = os.fdopen(terminal, "w")
    progress = Progress(output)
    os.close(main)
    with pytest.raises(OSError, check=lambda error: error.errno == errno.EIO):
        os.write(terminal, b"it is gone")
    with progress.step("PostgreSQL"):
        pass
    output.close()


def test_a_closed_output_stops_no_process(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdout", None)
    progress = Progress()
    with progress.step("PostgreSQL"):
        progress.warn("restarted")


def test_a_terminal_without_unicode_gets_replacement_characters() -> None:
    shown = io.BytesIO()
    progress = Progress(io.TextIOWrapper(shown, encoding="latin-1", write_through=True))
    with progress.step("PostgreSQL"):
        pass
    assert b"? PostgreSQL" in shown.getvalue()


def test_a_full_pipe_blocks_no_process(pipe: tuple[int, int]) -> None:
    read, write = pipe
    os.set_blocking(write, False)
    with suppress(BlockingIOError):
        while True:
            os.write(write, b"." * 4096)
    os.set_blocking(write, True)
    with os.fdopen(write, "w") as output:
        progress = Progress(output)
        progress.say("first")
        progress.say("second")
        os.set_blocking(read, False)
        with suppress(BlockingIOError):
            while True:
                assert os.read(read, 65536).strip(b".") == b""
        progress.catch_up()
        assert os.read(read, 65536) == b"first\nsecond\n"


def test_a_stopped_terminal_blocks_no_process() -> None:
    main, terminal = pty.openpty()
    output = os.fdopen(terminal, "w")
    progress = Progress(output)
    termios.tcflow(terminal, termios.TCOOFF)  # Ctrl-S
    progress.say("first")
    termios.tcflow(terminal, termios.TCOON)
    progress.catch_up()
    assert os.read(main, 4096) == b"first\r\n"
    output.close()
    os.close(main)
