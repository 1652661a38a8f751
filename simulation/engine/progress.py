"""A progress bar for long runs on a terminal; elsewhere one line at the start."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn

from simulation.engine.run import Progress as Told

REFRESH_SECONDS = 0.2


@contextmanager
def progress_bar(stream: TextIO, name: str) -> Iterator[Told]:
    """Yield the callback to call as jobs end."""
    console = Console(file=stream)
    if not console.is_terminal:
        yield _one_line(stream, name)
        return
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("jobs, day {task.fields[day]:.1f}"),
        TimeElapsedColumn(),
    )
    with Progress(*columns, console=console, transient=True) as bar:
        task = bar.add_task(name, total=None, day=0.0)
        shown = 0.0

        def told(ended: int, jobs: int, at: float) -> None:
            nonlocal shown
            if time.monotonic() - shown > REFRESH_SECONDS:
                shown = time.monotonic()
                bar.update(task, completed=ended, total=jobs, day=at / 86_400)

        yield told


def _one_line(stream: TextIO, name: str) -> Told:
    begun = False

    def told(ended: int, jobs: int, at: float) -> None:
        nonlocal begun
        if not begun:
            begun = True
            print(f"simulating {jobs} jobs of {name}", file=stream, flush=True)

    return told
