"""Shockwave's traces: Gavel's columns with ``duration_s``, ``slo`` and the mode of batch adaptation.

A job lasts ``duration_s`` on its requested GPUs, and its iterations follow from that: Shockwave measured the
models again, and with Gavel's throughputs ``total_steps`` would give twice the load. The batch stays that of
the type; ``batch_adaptation_mode`` is ignored. A positive ``slo`` is the deadline as a multiple of the
duration; otherwise the deadline is drawn by seed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from simulation.workloads.importers.gavel import GPU_TYPE, gavel_job
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.records import JobRecord, ParsedTrace, TraceFormat, same
from simulation.workloads.throughputs import GAVEL_TABLE
from simulation.workloads.trace_file import TraceRow

STATIC = "static"


def _read(rows: Sequence[TraceRow], options: WorkloadOptions) -> ParsedTrace:
    jobs = [_job(row, number) for number, row in enumerate(rows)]
    adapting = sum(row.values.get("batch_adaptation_mode", STATIC) not in (STATIC, "") for row in rows)
    note = f"{adapting} jobs adapt their batch in the trace; here it stays as named"
    return ParsedTrace(jobs, (note,) if adapting else ())


def _job(row: TraceRow, number: int) -> JobRecord:
    factor = row.number("slo") if row.has("slo") else -1.0
    return replace(
        gavel_job(row, number),
        iterations=None,
        requested_seconds=row.number("duration_s", above=0),
        deadline_factor=factor if factor > 0 else None,
    )


FORMAT = TraceFormat(
    name="shockwave",
    description="Shockwave's traces, with the batch kept as named; deadlines are drawn by seed",
    required=same("job_type", "total_steps", "num_gpus", "duration_s", "arrival_time_s"),
    optional=same("slo", "batch_adaptation_mode"),
    read=_read,
    usual_gpu_type=GPU_TYPE,
    models_measured_by=GAVEL_TABLE,
)
