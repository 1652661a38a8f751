"""Philly jobs: ``timestamp, duration, num_gpus``, with the virtual cluster in ``cluster``; a selection of
several is joined by ``+``.

Seconds count from the first job of the selection. Model, batch and deadline are drawn by seed, iterations are
``floor(duration * throughput)``.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime

from simulation.workloads.errors import TraceError, listed, quoted
from simulation.workloads.importers.raw_jobs import keep_usable
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.records import JobRecord, ParsedTrace, TraceFormat, same
from simulation.workloads.trace_file import TraceRow


def _read(rows: Sequence[TraceRow], options: WorkloadOptions) -> ParsedTrace:
    chosen = _of_virtual_cluster(rows, options.virtual_cluster)
    times = [_time(row) for row in chosen]
    start = min(times)
    parsed = keep_usable(
        [
            JobRecord(
                row=row,
                job_id=row.text("job_id") if "job_id" in row.columns else f"job{number:06d}",
                submitted_at=(time - start).total_seconds(),
                requested_gpus=row.whole("num_gpus", minimum=1),
                requested_seconds=row.number("duration", above=0),
            )
            for number, (row, time) in enumerate(zip(chosen, times, strict=True))
        ],
        options,
    )
    if options.virtual_cluster is not None:
        parsed = ParsedTrace(parsed.jobs, (f"virtual cluster {options.virtual_cluster} only", *parsed.notes))
    return parsed


def _of_virtual_cluster(rows: Sequence[TraceRow], wanted: str | None) -> Sequence[TraceRow]:
    if wanted is None:
        return rows
    if "cluster" not in rows[0].columns:
        raise TraceError(
            "a virtual cluster was asked for, but there is no column cluster", path=rows[0].path, line=1
        )
    together = wanted.split("+")
    known = {row.values["cluster"] for row in rows}
    for one in together:
        if one not in known:
            raise TraceError(
                f"no job is of virtual cluster {quoted(one)}; known are {listed(sorted(known))}",
                path=rows[0].path,
                column="cluster",
            )
    return [row for row in rows if row.values["cluster"] in together]


def _time(row: TraceRow) -> datetime:
    text = row.text("timestamp")
    try:
        return datetime.fromisoformat(text).replace(tzinfo=UTC)
    except ValueError:
        raise row.error(
            "timestamp", f"{quoted(text)} is not a time; 'YYYY-MM-DD HH:MM:SS' is expected"
        ) from None


FORMAT = TraceFormat(
    name="philly",
    description="Philly jobs by virtual cluster; models and deadlines are drawn by seed",
    required=same("timestamp", "duration", "num_gpus"),
    optional=same("cluster", "job_id"),
    read=_read,
)
