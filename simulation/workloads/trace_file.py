"""Reader for rows of a trace or table, with errors that name file, line and column."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from io import StringIO
from math import isfinite
from pathlib import Path

from simulation.workloads.errors import TraceError, listed, quoted

# Published by Gavel and Shockwave without a header, separated by tabs; the number of fields identifies them.
HEADERLESS: Mapping[int, tuple[str, ...]] = {
    7: (
        "job_type",
        "command",
        "num_steps_arg",
        "needs_data_dir",
        "total_steps",
        "arrival_time_s",
        "num_gpus",
    ),
    12: (
        "job_type",
        "command",
        "working_directory",
        "num_steps_arg",
        "needs_data_dir",
        "total_steps",
        "num_gpus",
        "batch_adaptation_mode",
        "priority_weight",
        "slo",
        "duration_s",
        "arrival_time_s",
    ),
}


@dataclass(frozen=True, slots=True)
class TraceRow:
    """One row: values by the column's canonical name; ``columns`` maps it to the name in the file."""

    path: Path
    line: int
    values: Mapping[str, str]
    columns: Mapping[str, str]

    def error(self, column: str, problem: str) -> TraceError:
        """Return an error at this row's ``column`` (canonical name)."""
        return TraceError(problem, path=self.path, line=self.line, column=self.columns.get(column, column))

    def has(self, column: str) -> bool:
        """Return whether the column has a value."""
        return bool(self.values.get(column))

    def text(self, column: str) -> str:
        """Return a required value. Raises TraceError if it is empty."""
        value = self.values.get(column, "")
        if not value:
            raise self.error(column, "the value is missing")
        return value

    def number(self, column: str, *, minimum: float | None = None, above: float | None = None) -> float:
        """Return a finite number within bounds. Raises TraceError for anything else."""
        value = self.text(column)
        try:
            number = float(value)
        except ValueError:
            raise self.error(column, f"{quoted(value)} is not a number") from None
        if not isfinite(number):
            raise self.error(column, f"{quoted(value)} is not a finite number")
        if minimum is not None and number < minimum:
            raise self.error(column, f"{value} is too small; it must be at least {minimum:g}")
        if above is not None and number <= above:
            raise self.error(column, f"{value} is too small; it must be above {above:g}")
        return number

    def whole(self, column: str, *, minimum: int) -> int:
        """Return a whole number; ``64.0`` is one. Raises TraceError if it is not, or below ``minimum``."""
        number = self.number(column, minimum=minimum)
        if number != int(number):
            raise self.error(column, f"{quoted(self.text(column))} is not a whole number")
        return int(number)

    def flag(self, column: str) -> bool:
        """Return True for ``1`` or ``true``, False for ``0`` or ``false``. Raises TraceError otherwise."""
        value = self.text(column).lower()
        if value in ("1", "true"):
            return True
        if value in ("0", "false"):
            return False
        raise self.error(column, f"{quoted(value)} is neither 0 nor 1")


@dataclass(frozen=True, slots=True)
class TraceFile:
    """A table as text: the header, and rows with their last line's number."""

    path: Path
    header: tuple[str, ...]
    rows: tuple[tuple[int, tuple[str, ...]], ...]

    def named(self, accepted: Mapping[str, tuple[str, ...]]) -> list[TraceRow]:
        """Return rows by canonical column name; ``accepted`` gives each one's possible names in the file."""
        columns: dict[str, str] = {}
        for canonical, names in accepted.items():
            found = next((name for name in names if name in self.header), None)
            if found is not None:
                columns[canonical] = found
        index = {canonical: self.header.index(name) for canonical, name in columns.items()}
        return [
            TraceRow(self.path, line, {name: cells[at] for name, at in index.items()}, columns)
            for line, cells in self.rows
        ]


def read_table(path: Path) -> TraceFile:
    """Return the file as header and rows, without blank lines and spaces around values.

    Raises TraceError if it cannot be read, is not text, is empty, has no rows, or has a row of another
    length.
    """
    text = text_of(path)
    first = text.lstrip().partition("\n")[0]
    if not first:
        raise TraceError("the file is empty; a header with column names is expected", path=path)
    tabs = first.count("\t") + 1
    headerless = HEADERLESS.get(tabs) if "," not in first.split("\t")[0] else None
    reader = csv.reader(
        StringIO(text, newline=""), delimiter="\t" if tabs > 1 and (headerless or "," not in first) else ","
    )
    header: tuple[str, ...] | None = headerless
    rows: list[tuple[int, tuple[str, ...]]] = []
    try:
        for cells in reader:
            values = tuple(cell.strip() for cell in cells)
            if not any(values):
                continue
            if header is None:
                header = _checked_header(path, reader.line_num, values)
            else:
                rows.append((reader.line_num, _checked_row(path, reader.line_num, values, header)))
    except csv.Error as error:
        raise TraceError(f"not a readable table: {error}", path=path, line=reader.line_num) from None
    assert header is not None  # the first line that is not blank is the header
    if not rows:
        raise TraceError("there is a header but no row below it", path=path)
    return TraceFile(path, header, tuple(rows))


def text_of(path: Path) -> str:
    """Return the file's text. Raises TraceError if it cannot be read or is not text."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        raise TraceError("there is no such file", path=path) from None
    except OSError as error:
        raise TraceError(f"the file cannot be read: {error.strerror}", path=path) from None
    if data[:2] == b"\x1f\x8b" or data[:4] == b"PK\x03\x04":
        raise TraceError("this is a packed archive; unpack it and name one of the files in it", path=path)
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise TraceError(
            f"this is not a text file (byte {error.start + 1} is not UTF-8); a CSV is expected", path=path
        ) from None
    if "\0" in text:
        raise TraceError("this is not a text file (it holds zero bytes); a CSV is expected", path=path)
    return text


def _checked_header(path: Path, line: int, header: tuple[str, ...]) -> tuple[str, ...]:
    doubled = sorted({name for name in header if name and header.count(name) > 1})
    if doubled:
        raise TraceError(f"the header names {listed(doubled)} twice", path=path, line=line)
    return header


def _checked_row(path: Path, line: int, values: tuple[str, ...], header: tuple[str, ...]) -> tuple[str, ...]:
    if len(values) != len(header):
        raise TraceError(
            f"there are {len(values)} values, but the header has {len(header)} columns", path=path, line=line
        )
    return values
