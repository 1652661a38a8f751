"""Filter for jobs without models, shared by the ITP and Philly formats."""

from __future__ import annotations

from collections.abc import Sequence

from simulation.workloads.errors import TraceError
from simulation.workloads.options import WorkloadOptions
from simulation.workloads.records import JobRecord, ParsedTrace

MOST_GPUS = 64
ODD_GPU_COUNTS = (3, 5, 6, 7)


def keep_usable(jobs: Sequence[JobRecord], options: WorkloadOptions) -> ParsedTrace:
    """Leave out early, short, odd-sized and very large jobs, as the published traces do.

    Raises TraceError if no job is left.
    """
    kept: list[JobRecord] = []
    left_out = {
        "submitted before the start": 0,
        "shorter": 0,
        "on an odd GPU count": 0,
        "on too many GPUs": 0,
    }
    for job in jobs:
        gpus = job.requested_gpus or 0
        if job.submitted_at < 0:
            left_out["submitted before the start"] += 1
        elif (job.requested_seconds or 0) < options.shortest_seconds:
            left_out["shorter"] += 1
        elif gpus in ODD_GPU_COUNTS:
            left_out["on an odd GPU count"] += 1
        elif gpus > MOST_GPUS:
            left_out["on too many GPUs"] += 1
        else:
            kept.append(job)
    words = {
        "submitted before the start": "submitted before the start of collection",
        "shorter": f"shorter than {options.shortest_seconds:g} s",
        "on an odd GPU count": "on 3, 5, 6 or 7 GPUs",
        "on too many GPUs": f"on more than {MOST_GPUS} GPUs",
    }
    notes = tuple(f"{count} jobs {words[why]} were left out" for why, count in left_out.items() if count)
    if not kept:
        path = jobs[0].row.path if jobs else None
        raise TraceError(f"no job is left: {'; '.join(notes) or 'there was none'}", path=path)
    return ParsedTrace(kept, notes)
