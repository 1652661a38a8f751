"""Usage from a CSV file with the columns `time_seconds` and `usage`."""

from __future__ import annotations

import numpy as np

from simulation.inference.usage import PERIOD_SECONDS, UsageSeries, averaged
from simulation.workloads.errors import TraceError
from simulation.workloads.trace_file import TraceFile, TraceRow

COLUMNS = ("time_seconds", "usage")

LONGEST_GAP_SECONDS = 3600.0
"""Longest time for which a value holds until the next one."""


def read_usage_file(table: TraceFile) -> UsageSeries:
    """Return the table's usage as five-minute means; times are seconds from midnight of the first day.

    Rows may have any spacing: a value holds until the next row, the last one as long as the one before it.

    Raises TraceError with file, line and column if a column is missing, a value is no number, a usage is not
    a share from 0 to 1, times do not ascend or have a gap of more than an hour, or the rows cover less than
    five minutes.
    """
    missing = [name for name in COLUMNS if name not in table.header]
    if missing:
        raise TraceError(
            f"column {missing[0]} is missing; a usage file has the columns {' and '.join(COLUMNS)}",
            path=table.path,
            line=1,
        )
    rows = table.named({name: (name,) for name in COLUMNS})
    times, usage = np.zeros(len(rows)), np.zeros(len(rows))
    for index, row in enumerate(rows):
        times[index] = _time(row, times[index - 1] if index else None)
        usage[index] = _usage(row)
    last = float(times[-1] - times[-2]) if len(rows) > 1 else PERIOD_SECONDS
    means = averaged(times, usage, float(times[-1]) + last, PERIOD_SECONDS)
    if not means.size:
        raise TraceError("the rows cover less than five minutes", path=table.path)
    return UsageSeries(
        name=table.path.stem,
        source=f"file {table.path.name}",
        # Means of shares are shares, except for floating-point error.
        usage=np.clip(means, 0.0, 1.0),
        start_seconds=float(times[0]),
    )


def _time(row: TraceRow, before: float | None) -> float:
    time = row.number("time_seconds", minimum=0)
    if before is not None and time <= before:
        raise row.error("time_seconds", f"{time:g} is not after {before:g}, the time of the row before")
    if before is not None and time - before > LONGEST_GAP_SECONDS:
        raise row.error(
            "time_seconds",
            f"there is nothing for {time - before:g} seconds before this row; at most "
            f"{LONGEST_GAP_SECONDS:g} can be bridged",
        )
    return time


def _usage(row: TraceRow) -> float:
    usage = row.number("usage", minimum=0)
    if usage > 1:
        raise row.error(
            "usage", f"{usage:g} is too large; usage is a share of GPUs from 0 to 1, not a percentage"
        )
    return usage
