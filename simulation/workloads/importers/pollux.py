"""Workloads of Pollux's simulator: ``name, time, application, num_replicas, batch_size``.

A job trains its application to the end: for as many iterations as Pollux's validation tables have for its
batch, if the folder ``pollux_t4`` is in or beside the trace's folders, else for all samples once per epoch
(`pollux_tables`). Deadlines are drawn by seed around the time on the requested replicas.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from simulation.workloads.errors import listed, quoted
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.pollux_tables import GPU_TYPE, TRAINING_SAMPLES, training_iterations
from simulation.workloads.records import JobRecord, ParsedTrace, TraceFormat, same
from simulation.workloads.trace_file import TraceRow

TABLES_FOLDER = "pollux_t4"
# Number of folders above the trace in which the tables' folder is searched.
FOLDERS_ABOVE = 4


def tables_folder(trace: Path) -> Path | None:
    """Return the folder with Pollux's tables, beside the trace or a few folders above it, or None."""
    for folder in trace.resolve().parents[:FOLDERS_ABOVE]:
        for candidate in (folder / TABLES_FOLDER, folder / "elasticflow" / TABLES_FOLDER):
            if candidate.is_dir():
                return candidate
    return None


def _read(rows: Sequence[TraceRow], options: WorkloadOptions) -> ParsedTrace:
    folder = tables_folder(rows[0].path)
    jobs: list[JobRecord] = []
    not_measured = 0
    for row in rows:
        application = row.text("application")
        batch = row.whole("batch_size", minimum=1)
        found = training_iterations(folder, application, batch)
        if found is None:
            known = listed(sorted(TRAINING_SAMPLES))
            raise row.error("application", f"unknown application {quoted(application)}; known are {known}")
        iterations, measured = found
        not_measured += not measured
        jobs.append(
            JobRecord(
                row=row,
                job_id=row.text("name"),
                submitted_at=row.number("time", minimum=0),
                model=application,
                global_batch_size=batch,
                iterations=iterations,
                requested_gpus=row.whole("num_replicas", minimum=1),
            )
        )
    note = f"iterations of {not_measured} jobs are samples over batch: no validation table covers their batch"
    return ParsedTrace(jobs, (note,) if not_measured else ())


FORMAT = TraceFormat(
    name="pollux",
    description="workloads of Pollux's simulator, trained to the end; deadlines are drawn by seed",
    required=same("name", "time", "application", "num_replicas", "batch_size"),
    optional={},
    read=_read,
    usual_gpu_type=GPU_TYPE,
)
