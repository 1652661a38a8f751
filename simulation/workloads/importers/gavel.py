"""Gavel's traces: ``job_type, total_steps, arrival_time_s, num_gpus``, or the published ``.trace`` files
themselves.

Steps become iterations of a fixed global batch (`gavel_names`). Deadlines are drawn by seed around the time
on the requested GPUs.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil

from simulation.workloads.gavel_names import STEPS_PER_ITERATION, split_job_type
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.records import JobRecord, ParsedTrace, TraceFormat, same
from simulation.workloads.throughputs import GAVEL_TABLE
from simulation.workloads.trace_file import TraceRow

GPU_TYPE = "v100"


def gavel_job(row: TraceRow, number: int) -> JobRecord:
    """Return the record of a row in Gavel's or Shockwave's format."""
    model, batch = split_job_type(row, "job_type")
    return JobRecord(
        row=row,
        job_id=f"job{number:06d}",
        submitted_at=row.number("arrival_time_s", minimum=0),
        model=model,
        global_batch_size=batch * STEPS_PER_ITERATION,
        iterations=float(ceil(row.number("total_steps", above=0) / STEPS_PER_ITERATION)),
        requested_gpus=row.whole("num_gpus", minimum=1),
    )


def _read(rows: Sequence[TraceRow], options: WorkloadOptions) -> ParsedTrace:
    return ParsedTrace([gavel_job(row, number) for number, row in enumerate(rows)])


FORMAT = TraceFormat(
    name="gavel",
    description="Gavel's Philly-derived traces; deadlines are drawn by seed",
    required=same("job_type", "total_steps", "arrival_time_s", "num_gpus"),
    optional={},
    read=_read,
    usual_gpu_type=GPU_TYPE,
    models_measured_by=GAVEL_TABLE,
)
