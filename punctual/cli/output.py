"""Output for people and programs: tables, sentences and JSON; escape sequences only on a terminal."""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Iterable, Sequence
from datetime import UTC, datetime
from typing import Any

from rich import box
from rich.console import Console
from rich.table import Table
from rich.text import Text

from punctual.client.durations import format_duration

#: Width without a terminal: nothing is cut off, because a program reads it.
_WIDTH_OF_A_PIPE = 240
_ESCAPE_SEQUENCES = re.compile(r"\x1b(?:\[[0-?]*[ -/]*[@-~]|\][^\x07\x1b]*(?:\x07|\x1b\\)|[@-Z\\-_])")
_STATE_STYLES = {
    "submitted": "bright_black", "profiling": "magenta", "declined": "yellow", "admitted": "blue",
    "running": "green",
    "suspended": "yellow", "completed": "green", "failed": "red", "cancelled": "bright_black",
    "up": "green", "suspect": "yellow", "down": "red",
}  # fmt: skip


def console(*, stderr: bool = False) -> Console:
    """Return a console on the current stdout or stderr. Markup in names and messages is not interpreted."""
    stream = sys.stderr if stderr else sys.stdout
    width = None if stream.isatty() or "COLUMNS" in os.environ else _WIDTH_OF_A_PIPE
    return Console(stderr=stderr, markup=False, highlight=False, emoji=False, soft_wrap=True, width=width)


def is_terminal() -> bool:
    """Whether stdout is a terminal."""
    return sys.stdout.isatty()


def can_ask() -> bool:
    """Whether a person can answer a question."""
    return sys.stdin.isatty() and sys.stderr.isatty()


def say(text: str, *, style: str | None = None) -> None:
    """Print a line on stdout."""
    console().print(safe(text), style=style)


def note(text: str) -> None:
    """Print a line besides the result, on stderr."""
    console(stderr=True).print(safe(text), style="dim")


def fail(message: str, hint: str | None = None) -> None:
    """Print an error in one line, with its hint if there is one."""
    line = " ".join(safe(f"{message} ({hint})" if hint else message).split())
    console(stderr=True).print(Text("Error: ", style="bold red").append(line, style="not bold default"))


def safe(text: str) -> str:
    """Return untrusted text without characters that could control a terminal."""
    plain = _ESCAPE_SEQUENCES.sub("", text)
    return "".join(
        character if character in "\n\t" or character.isprintable() else "\ufffd" for character in plain
    )


def print_json(document: Any) -> None:
    """Print one document, for programs."""
    sys.stdout.write(json.dumps(document, indent=2, ensure_ascii=True, default=str) + "\n")
    sys.stdout.flush()


def print_json_line(document: Any) -> None:
    """Print one document in one line, for programs that follow."""
    sys.stdout.write(json.dumps(document, ensure_ascii=True, default=str) + "\n")
    sys.stdout.flush()


def table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    right: Sequence[str] = (),
    optional: Sequence[str] = (),
) -> Table:
    """Return a plain table.

    Args:
        columns: names of the columns.
        rows: cells, one for each column.
        right: names of numeric columns.
        optional: names of columns that a terminal leaves out, the first one first, until the others fit.
    """
    result = Table(
        box=box.SIMPLE_HEAD if is_terminal() else None,
        pad_edge=False,
        collapse_padding=is_terminal(),
        header_style="bold",
    )
    for column in columns:
        result.add_column(
            column, justify="right" if column in right else "left", no_wrap=column in ("ID", "STATE")
        )
    for row in rows:
        result.add_row(*(cell if isinstance(cell, Text) else Text(safe(_text(cell))) for cell in row))
    if optional and is_terminal() and not _fits(result):
        left_out = columns.index(optional[0])
        fewer = [[*row[:left_out], *row[left_out + 1 :]] for row in rows]
        kept = [*columns[:left_out], *columns[left_out + 1 :]]
        return table(kept, fewer, right=right, optional=optional[1:])
    return result


def _fits(result: Table) -> bool:
    whole = console().options.update(max_width=10_000)
    return console().measure(result, options=whole).maximum <= console().width


def print_table(
    columns: Sequence[str],
    rows: Sequence[Sequence[Any]],
    *,
    right: Sequence[str] = (),
    optional: Sequence[str] = (),
    empty: str = "",
) -> None:
    """Print a table (see `table`), or a hint if it is empty."""
    if not rows:
        note(empty or "Nothing to show.")
        return
    console().print(table(columns, rows, right=right, optional=optional))


def print_facts(facts: Iterable[tuple[str, Any]]) -> None:
    """Print named facts in rows; unknown ones are left out."""
    known = [(name, value) for name, value in facts if value is not None and value != ""]
    grid = Table(box=None, show_header=False, pad_edge=False)
    grid.add_column(style="bold", no_wrap=True)
    grid.add_column()
    for name, value in known:
        grid.add_row(name, value if isinstance(value, Text) else Text(safe(_text(value))))
    console().print(grid)


def state_text(state: str, *marks: str) -> Text:
    """Return a state in its colour, with marks such as `at risk`."""
    text = Text(safe(state), style=_STATE_STYLES.get(state, ""))
    for mark in marks:
        text.append(f" {mark}", style="bold red")
    return text


def time_text(moment: datetime | str | None) -> str:
    """Return a moment, or its ISO text, in UTC: the time of day if it is today's, else with the date."""
    if moment is None:
        return "-"
    if isinstance(moment, str):
        moment = datetime.fromisoformat(moment)
    moment = moment.astimezone(UTC)
    today = moment.date() == datetime.now(UTC).date()
    return moment.strftime("%H:%M:%S UTC" if today else "%Y-%m-%d %H:%M UTC")


def age_text(moment: datetime | None) -> str:
    """Return how long ago a moment was."""
    if moment is None:
        return "-"
    return f"{format_duration(max(0.0, (datetime.now(UTC) - moment).total_seconds()))} ago"


def size_text(size_bytes: float) -> str:
    """Return a number of bytes in a suitable unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if size_bytes < 1024:
            return f"{size_bytes:.0f} {unit}" if unit == "B" else f"{size_bytes:.1f} {unit}"
        size_bytes /= 1024
    return f"{size_bytes:.1f} TiB"


def slack_text(seconds: float | None) -> str:
    """Return slack with its sign: time left, or how late."""
    if seconds is None:
        return "-"
    return f"{format_duration(-seconds)} late" if seconds < 0 else format_duration(seconds)


def _text(value: Any) -> str:
    if value is None or value == "":
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return time_text(value) if isinstance(value, datetime) else str(value)
