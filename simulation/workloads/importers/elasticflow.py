"""ElasticFlow's own traces: jobs with model, batch, iterations and deadline.

Both spellings are read: ``submission_time, num_iteration, deadline`` (the ten ITP clusters, the testbed) and
``submit_time, iteration, ddl`` (the T4 trace, the Philly-derived one, the authors' generator), with or
without ``best_effort``. Drawn values in a trace are used as they are.
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.core.question.snapshot import ServiceClass
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.records import JobRecord, ParsedTrace, TraceFormat, same
from simulation.workloads.trace_file import TraceRow


def _read(rows: Sequence[TraceRow], options: WorkloadOptions) -> ParsedTrace:
    return ParsedTrace([_job(row) for row in rows])


def _job(row: TraceRow) -> JobRecord:
    service_class = None
    if row.has("best_effort"):
        service_class = ServiceClass.BEST_EFFORT if row.flag("best_effort") else ServiceClass.SLO
    return JobRecord(
        row=row,
        job_id=row.text("job_id"),
        submitted_at=row.number("submitted_at", minimum=0),
        model=row.text("model_name"),
        global_batch_size=row.whole("batch_size", minimum=1),
        iterations=row.number("iterations", above=0),
        requested_gpus=row.whole("num_gpu", minimum=1),
        requested_seconds=row.number("duration", above=0),
        deadline_at=row.number("deadline_at"),
        service_class=service_class,
    )


FORMAT = TraceFormat(
    name="elasticflow",
    description="ElasticFlow's traces, ITP or Philly derived, with models and deadlines",
    required={
        **same("job_id", "model_name", "batch_size", "num_gpu", "duration"),
        "submitted_at": ("submission_time", "submit_time"),
        "iterations": ("num_iteration", "iteration"),
        "deadline_at": ("deadline", "ddl"),
    },
    optional=same("best_effort"),
    read=_read,
)
