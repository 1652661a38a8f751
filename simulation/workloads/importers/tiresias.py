"""Tiresias' sample jobs: ``job_id, num_gpu, submit_time, iterations, model_name, duration``.

Its models have no batch and most were never measured: submission, GPUs and duration are used, model and batch
are drawn by seed, and iterations follow from the duration.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulation.workloads.options import WorkloadOptions
from simulation.workloads.records import JobRecord, ParsedTrace, TraceFormat, same
from simulation.workloads.trace_file import TraceRow


def _read(rows: Sequence[TraceRow], options: WorkloadOptions) -> ParsedTrace:
    jobs = [
        JobRecord(
            row=row,
            job_id=row.text("job_id"),
            submitted_at=row.number("submit_time", minimum=0),
            requested_gpus=row.whole("num_gpu", minimum=1),
            requested_seconds=row.number("duration", above=0),
        )
        for row in rows
    ]
    return ParsedTrace(jobs, ("the trace's models were not measured: others are drawn in their place",))


FORMAT = TraceFormat(
    name="tiresias",
    description="Tiresias' sample jobs; models and deadlines are drawn by seed",
    required=same("job_id", "num_gpu", "submit_time", "iterations", "model_name", "duration"),
    optional={},
    read=_read,
)
