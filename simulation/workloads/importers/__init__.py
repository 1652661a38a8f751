"""Trace formats: one file each, one line each in `FORMATS`."""

from __future__ import annotations

from pathlib import Path

from simulation.workloads.errors import TraceError, listed, quoted
from simulation.workloads.importers import (
    elasticflow,
    gavel,
    generic,
    itp_raw,
    philly,
    pollux,
    shockwave,
    tiresias,
)
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.records import ParsedTrace, TraceFormat
from simulation.workloads.trace_file import TraceFile, read_table

# A file has the first format whose required columns it has, so formats that require more come first.
FORMATS: tuple[TraceFormat, ...] = (
    generic.FORMAT,
    elasticflow.FORMAT,
    tiresias.FORMAT,
    pollux.FORMAT,
    shockwave.FORMAT,
    gavel.FORMAT,
    philly.FORMAT,
    itp_raw.FORMAT,
)


def detect_format(table: TraceFile, forced: str | None = None) -> TraceFormat:
    """Return the format of ``table`` by its header, or the one named ``forced``.

    Raises TraceError if none fits, with what the nearest one lacks.
    """
    if forced is not None:
        chosen = next((known for known in FORMATS if known.name == forced), None)
        if chosen is None:
            names = listed([known.name for known in FORMATS])
            raise TraceError(f"unknown trace format {quoted(forced)}; known are {names}")
        if not chosen.fits(table.header):
            raise _missing(table, chosen)
        return chosen
    for known in FORMATS:
        if known.fits(table.header):
            return known
    nearest = min(FORMATS, key=lambda known: len(known.missing(table.header)) / len(known.required))
    if len(nearest.missing(table.header)) < len(nearest.required):
        raise _missing(table, nearest)
    names = listed([known.name for known in FORMATS])
    raise TraceError(
        f"the columns {quoted(', '.join(table.header))} are of no known format ({names})",
        path=table.path,
        line=1,
    )


def read_trace(path: Path, options: WorkloadOptions) -> tuple[TraceFormat, ParsedTrace]:
    """Return the format of the file at ``path`` and its jobs. Raises TraceError."""
    table = read_table(path)
    known = detect_format(table, options.format)
    rows = table.named({**known.required, **known.optional})
    return known, known.read(rows, options)


def _missing(table: TraceFile, known: TraceFormat) -> TraceError:
    columns = [" or ".join(names) for names in known.required.values()]
    return TraceError(
        f"column {listed(known.missing(table.header))} is missing; a trace of format {known.name} has "
        f"{listed(columns)}",
        path=table.path,
        line=1,
    )
