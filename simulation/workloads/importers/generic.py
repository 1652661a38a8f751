"""Punctual's own CSV, for workloads of any origin; `writing` writes it.

| column | meaning |
| --- | --- |
| `job_id` | unique text |
| `submitted_at` | seconds from the start of the trace |
| `iterations` | iterations of the global batch |
| `model`, `global_batch_size` | a row of the throughput table |
| `service_class` | `slo`, `soft` or `best_effort`; empty: `slo` with a deadline, `best_effort` without |
| `deadline_at` | seconds from the start of the trace; empty for `best_effort` |
| `requested_gpus` | request to a rival scheduler; empty: the smallest measured count |
| `requested_seconds` (optional) | duration on these; empty: iterations over throughput |
| `worker_counts` (optional) | numbers that its function allows, such as `3 6 12`; empty: powers of two |
| `worker_memory_gb` (optional) | host memory of one worker; empty: the throughput table's value |
"""

from __future__ import annotations

from collections.abc import Sequence

from scheduling.core.question.snapshot import ServiceClass
from scheduling.core.question.worker_counts import MOST_WORKERS
from simulation.workloads.errors import listed, quoted
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.records import JobRecord, ParsedTrace, TraceFormat, same
from simulation.workloads.trace_file import TraceRow

COLUMNS = (
    "job_id",
    "submitted_at",
    "iterations",
    "model",
    "global_batch_size",
    "service_class",
    "deadline_at",
    "requested_gpus",
)
OPTIONAL_COLUMN = "requested_seconds"
WORKER_COUNTS, WORKER_MEMORY = "worker_counts", "worker_memory_gb"
BYTES_PER_GB = 1e9


def _read(rows: Sequence[TraceRow], options: WorkloadOptions) -> ParsedTrace:
    return ParsedTrace([_job(row) for row in rows])


def _job(row: TraceRow) -> JobRecord:
    service_class = _service_class(row)
    if service_class is not ServiceClass.BEST_EFFORT and not row.has("deadline_at"):
        raise row.error("deadline_at", f"a job of class {service_class} needs a deadline")
    if service_class is ServiceClass.BEST_EFFORT and row.has("deadline_at"):
        raise row.error("deadline_at", "a best_effort job has no deadline; leave it empty")
    return JobRecord(
        row=row,
        job_id=row.text("job_id"),
        submitted_at=row.number("submitted_at", minimum=0),
        model=row.text("model"),
        global_batch_size=row.whole("global_batch_size", minimum=1),
        iterations=row.number("iterations", above=0),
        requested_gpus=row.whole("requested_gpus", minimum=1) if row.has("requested_gpus") else None,
        requested_seconds=row.number(OPTIONAL_COLUMN, above=0) if row.has(OPTIONAL_COLUMN) else None,
        deadline_at=row.number("deadline_at") if row.has("deadline_at") else None,
        service_class=service_class,
        worker_counts=_worker_counts(row) if row.has(WORKER_COUNTS) else (),
        worker_memory_bytes=row.number(WORKER_MEMORY, above=0) * BYTES_PER_GB
        if row.has(WORKER_MEMORY)
        else None,
    )


def _worker_counts(row: TraceRow) -> tuple[int, ...]:
    """Parse ascending whole numbers, separated by spaces."""
    text = row.text(WORKER_COUNTS)
    try:
        counts = tuple(int(part) for part in text.split())
    except ValueError:
        counts = ()
    ascending = all(one < other for one, other in zip(counts, counts[1:], strict=False))
    if not counts or counts[0] < 1 or counts[-1] > MOST_WORKERS or not ascending:
        raise row.error(
            WORKER_COUNTS,
            f"{quoted(text)} is no list of numbers of workers; write ascending numbers from 1 to "
            f"{MOST_WORKERS} with spaces between, such as 3 6 12",
        )
    return counts


def _service_class(row: TraceRow) -> ServiceClass:
    if not row.has("service_class"):
        return ServiceClass.SLO if row.has("deadline_at") else ServiceClass.BEST_EFFORT
    text = row.text("service_class")
    try:
        return ServiceClass(text)
    except ValueError:
        known = listed([choice.value for choice in ServiceClass])
        raise row.error("service_class", f"unknown class {quoted(text)}; known are {known}") from None


FORMAT = TraceFormat(
    name="generic",
    description="Punctual's own CSV",
    required=same(*COLUMNS),
    optional=same(OPTIONAL_COLUMN, WORKER_COUNTS, WORKER_MEMORY),
    read=_read,
)
