"""Errors of traces and throughput tables, and helpers for their texts."""

from __future__ import annotations

from pathlib import Path

LONGEST_QUOTE = 60


class TraceError(ValueError):
    """A trace, a throughput table or an option of either cannot be used.

    Its text is one line: the file, the line (the header is line 1) and the column if known, then what is
    wrong and what would be right.
    """

    def __init__(
        self, problem: str, *, path: Path | None = None, line: int | None = None, column: str | None = None
    ) -> None:
        where = [str(path)] if path is not None else []
        if line is not None:
            where.append(f"line {line}")
        if column is not None:
            where.append(f"column {column}")
        text = f"{', '.join(where)}: {problem}" if where else problem
        super().__init__(" ".join(text.split()))
        self.path = path
        self.line = line
        self.column = column


def quoted(value: str) -> str:
    """Return ``value`` for a message: escaped, and shortened if it is long."""
    return repr(value if len(value) <= LONGEST_QUOTE else value[: LONGEST_QUOTE - 3] + "...")


def listed(names: list[str], most: int = 30) -> str:
    """Join the first ``most`` names for a sentence."""
    if not names:
        return "none"
    rest = len(names) - most
    return ", ".join(names[:most]) + (f" and {rest} more" if rest > 0 else "")
