"""Input of a simulation: jobs over time, and the throughput of each model by GPU count.

Times are seconds from the start of the trace, throughput is iterations of the global batch per second.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np

from scheduling.core.question.snapshot import FloatArray, IntArray, ServiceClass


@dataclass(frozen=True, slots=True)
class MeasuredThroughput:
    """Every point measured for one model and global batch on one GPU type, ascending in ``gpus``.

    Points that could not run are left out: they are not levels of zero throughput. Nothing is smoothed;
    throughput may fall from one point to the next. ``pause_seconds``: the pause measured at each point; None
    if only throughput was measured, which means the published formula. ``memory_bytes``: host memory of one
    worker at each point, 0 if not measured there; None if never measured. A point is a number of workers, one
    on each GPU.
    """

    gpus: IntArray
    iterations_per_second: FloatArray
    pause_seconds: FloatArray | None = None
    memory_bytes: FloatArray | None = None


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """One model with one global batch size, measured on one or more GPU types.

    ``adapted``: curves with a batch size that follows the GPUs, in iterations of ``global_batch_size``
    (goodput), for policies that adapt it; empty if not measured. ``worker_counts``: the numbers of workers
    that its function allows, if they are not powers of two (decision 0018).
    """

    model: str
    global_batch_size: int
    by_kind: Mapping[str, MeasuredThroughput]
    adapted: Mapping[str, MeasuredThroughput] = field(default_factory=dict)
    worker_counts: tuple[int, ...] = ()


@dataclass(frozen=True)
class Workload:
    """Jobs as columns, in order of submission (ties by ``job_id``); row i is one job.

    ``deadline_at`` is infinity for best effort. ``profile_of`` indexes ``profiles``. ``requested_gpus`` and
    ``requested_seconds``: the request to a rival scheduler and the job's duration on it; only policies
    without elasticity read them. ``source`` says in words where the jobs came from.
    """

    name: str
    source: str
    job_id: tuple[str, ...]
    service_class: tuple[ServiceClass, ...]
    submitted_at: FloatArray
    deadline_at: FloatArray
    iterations: FloatArray
    profile_of: IntArray
    requested_gpus: IntArray
    requested_seconds: FloatArray
    profiles: tuple[ModelProfile, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def jobs(self) -> int:
        """Number of jobs."""
        return len(self.job_id)

    def first(self, count: int) -> Workload:
        """Return the first ``count`` jobs."""
        return self.take(np.arange(min(count, self.jobs)))

    def take(self, rows: IntArray) -> Workload:
        """Return the jobs of ``rows``, in that order."""
        return Workload(
            name=self.name,
            source=self.source,
            job_id=tuple(self.job_id[row] for row in rows.tolist()),
            service_class=tuple(self.service_class[row] for row in rows.tolist()),
            submitted_at=self.submitted_at[rows],
            deadline_at=self.deadline_at[rows],
            iterations=self.iterations[rows],
            profile_of=self.profile_of[rows],
            requested_gpus=self.requested_gpus[rows],
            requested_seconds=self.requested_seconds[rows],
            profiles=self.profiles,
            notes=self.notes,
        )
