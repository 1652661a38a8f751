"""Raw rows of the ITP clusters: ``submission_time, duration, num_gpu``, with or without ``job_id``.

Model and batch are drawn by seed, iterations are ``floor(duration * throughput)``, and the deadline is drawn
around the duration, as in the published traces.
"""

from __future__ import annotations

from collections.abc import Sequence

from simulation.workloads.importers.raw_jobs import keep_usable
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.records import JobRecord, ParsedTrace, TraceFormat, same
from simulation.workloads.trace_file import TraceRow


def _read(rows: Sequence[TraceRow], options: WorkloadOptions) -> ParsedTrace:
    return keep_usable(
        [
            JobRecord(
                row=row,
                job_id=row.text("job_id") if "job_id" in row.columns else f"job{number:06d}",
                submitted_at=row.number("submitted_at"),
                requested_gpus=row.whole("num_gpu", minimum=1),
                requested_seconds=row.number("duration", above=0),
            )
            for number, row in enumerate(rows)
        ],
        options,
    )


FORMAT = TraceFormat(
    name="itp_raw",
    description="raw ITP jobs: submission, duration, GPUs; models and deadlines are drawn by seed",
    required={"submitted_at": ("submission_time", "submit_time"), **same("duration", "num_gpu")},
    optional=same("job_id"),
    read=_read,
)
