"""What the person at the terminal sees while the platform starts, runs and stops."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.markup import escape


class Progress:
    """Lines on the terminal. No thread draws them: the supervisor forks."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(file=sys.stdout, highlight=False)
        self._began = time.monotonic()

    @contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Announce a step and, when it is done, how long it took."""
        begun = time.monotonic()
        if self._console.is_terminal:
            self._console.print(f"  [dim]…[/dim] {escape(text)}", end="\r")
        try:
            yield
        except BaseException:
            self._console.print(f"  [red]✗[/red] {escape(text)}")
            raise
        self._console.print(f"  [green]✓[/green] {escape(text)} [dim]{time.monotonic() - begun:.1f} s[/dim]")

    def say(self, text: str) -> None:
        """One line."""
        self._console.print(text, markup=False)

    def warn(self, text: str) -> None:
        """One line that matters."""
        self._console.print(f"[yellow]![/yellow] {escape(text)}")

    def headline(self, text: str) -> None:
        self._console.print(f"[bold]{escape(text)}[/bold]")

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since this object was made: since the start."""
        return time.monotonic() - self._began
