"""Terminal output while the platform starts, runs and stops."""

from __future__ import annotations

import io
import os
import select
import sys
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.markup import escape

#: Lines kept while the reader does not read: a stopped terminal, a full pipe.
_MOST_WAITING_LINES = 1000


class _Output(Console):
    """A console that becomes quiet when its terminal or reader is gone; Rich's own ends the process."""

    def on_broken_pipe(self) -> None:
        """Discard all further output, including at exit."""
        self.quiet = True
        nobody = os.open(os.devnull, os.O_WRONLY)
        try:
            os.dup2(nobody, self.file.fileno())
        finally:
            os.close(nobody)

    def takes_text(self) -> bool:
        """Return whether writing a line would not block. A broken output does not block: it fails at once."""
        try:
            descriptor = self.file.fileno()
        except io.UnsupportedOperation:
            descriptor = -1
        if descriptor < 0:  # in memory, or no output
            return True
        poll = select.poll()
        poll.register(descriptor, select.POLLOUT)
        return bool(poll.poll(0))


class Progress:
    """Lines on the terminal. No thread draws them, because the supervisor forks. The platform keeps running
    if the terminal or the reader of the output goes away."""

    def __init__(self, file: TextIO | None = None) -> None:
        file = file or sys.stdout
        if isinstance(file, io.TextIOWrapper):
            file.reconfigure(errors="replace")
        self._console = _Output(file=file, highlight=False)
        self._waiting: deque[tuple[str, str, bool]] = deque(maxlen=_MOST_WAITING_LINES)
        self._began = time.monotonic()

    def _print(self, text: str, *, end: str = "\n", markup: bool = True) -> None:
        self._waiting.append((text, end, markup))
        self.catch_up()

    def catch_up(self) -> None:
        """Print lines that could not be written before."""
        while self._waiting and self._console.takes_text():
            text, end, markup = self._waiting.popleft()
            try:
                self._console.print(text, end=end, markup=markup, soft_wrap=True)
            except BlockingIOError:
                pass  # What was not written stays in the file's buffer.
            except OSError:
                self._console.on_broken_pipe()

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Announce a step and, when it is done, how long it took."""
        begun = time.monotonic()
        if self._console.is_terminal:
            self._print(f"  [dim]…[/dim] {escape(text)}", end="\r")
        try:
            yield
        except BaseException:
            self._print(f"  [red]✗[/red] {escape(text)}")
            raise
        self._print(f"  [green]✓[/green] {escape(text)} [dim]{time.monotonic() - begun:.1f} s[/dim]")

    def say(self, text: str) -> None:
        """Print one line."""
        self._print(text, markup=False)

    def warn(self, text: str) -> None:
        """Print one line as a warning."""
        self._print(f"[yellow]![/yellow] {escape(text)}")

    def headline(self, text: str) -> None:
        self._print(f"[bold]{escape(text)}[/bold]")

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since this object was created at the start."""
        return time.monotonic() - self._began
