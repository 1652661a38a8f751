"""What the person at the terminal sees while the platform starts, runs and stops."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape


class Progress:
    """Lines on the terminal. No thread draws them: the supervisor forks. A terminal that is gone is no
    error."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stdout, highlight=False)
        self._began = time.monotonic()
        self._is_gone = False

    def _print(self, text: str, *, end: str = "\n", markup: bool = True) -> None:
        if self._is_gone:
            return
        try:
            self._console.print(text, end=end, markup=markup)
        except OSError:
            # The terminal was closed or the pipe's reader went away: stop in order all the same.
            self._is_gone = True

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
        """One line."""
        self._print(text, markup=False)

    def warn(self, text: str) -> None:
        """One line that matters."""
        self._print(f"[yellow]![/yellow] {escape(text)}")

    def headline(self, text: str) -> None:
        self._print(f"[bold]{escape(text)}[/bold]")

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since this object was made: since the start."""
        return time.monotonic() - self._began
