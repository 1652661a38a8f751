"""Results of a simulation: jobs, the cluster over time, and counts of events. Reports read only this."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

from scheduling.core.question.snapshot import FloatArray, IntArray, ServiceClass
from simulation.loans import LoanHistory

BoolArray = NDArray[np.bool_]

#: The core plans finishes to within two microseconds of a deadline; executing a plan by pieces rounds again.
ON_TIME_TOLERANCE_SECONDS = 1e-5


class JobEnd(StrEnum):
    """How a job ended."""

    COMPLETED = "completed"
    DECLINED = "declined"
    CANCELLED = "cancelled"
    FAILED = "failed"
    UNFINISHED = "unfinished"  # the run was stopped, or nothing could ever run the job


@dataclass(frozen=True)
class JobOutcomes:
    """One row per job, in order of submission. Times are seconds from the start of the trace, NaN if the
    event did not happen (``started_at`` of a declined job). ``deadline_at`` is infinity for best effort.

    ``void_reason`` is "" unless the promise became void. ``pool``: GPU type of the pool that
    the job ran on or was promised on. ``planned_finish_at``: the finish planned when it was promised.
    ``waiting_seconds``: time without GPUs between submission and end, before the first start and after
    preemptions.
    """

    job_id: tuple[str, ...]
    service_class: tuple[ServiceClass, ...]
    end: tuple[JobEnd, ...]
    promised: tuple[bool, ...]
    reason_code: tuple[str, ...]
    void_reason: tuple[str, ...]
    pool: tuple[str, ...]
    submitted_at: FloatArray
    deadline_at: FloatArray
    decided_at: FloatArray
    started_at: FloatArray
    completed_at: FloatArray
    planned_finish_at: FloatArray
    gpu_seconds: FloatArray
    pause_seconds: FloatArray
    waiting_seconds: FloatArray
    rescales: IntArray
    migrations: IntArray
    preemptions: IntArray

    @property
    def on_time(self) -> BoolArray:
        """Whether each job completed by its deadline; true of each completed job without one."""
        completed = np.array([end == JobEnd.COMPLETED for end in self.end], dtype=bool)
        return completed & (self.completed_at <= self.deadline_at + ON_TIME_TOLERANCE_SECONDS)


@dataclass(frozen=True)
class ClusterHistory:
    """The cluster between planning instants: row k holds on ``[time[k], time[k + 1])``, the last row ends
    at the run's end. Counts are GPUs or jobs; ``cluster_efficiency`` is ElasticFlow's (sum of speed-ups over
    GPUs). ``decision_seconds`` is the wall time of the decision taken at that instant."""

    time: FloatArray
    gpus: IntArray
    gpus_promised: IntArray
    gpus_unpromised: IntArray
    jobs_running: IntArray
    jobs_waiting: IntArray
    cluster_efficiency: FloatArray
    decision_seconds: FloatArray


@dataclass(frozen=True)
class AllocationHistory:
    """GPUs of jobs over time: job ``job[k]`` (row of JobOutcomes) holds ``gpus[k]`` from ``time[k]`` on."""

    time: FloatArray
    job: IntArray
    gpus: IntArray


@dataclass(frozen=True)
class RunOutcome:
    """One simulation, finished or interrupted.

    ``settings``: the run's settings (policy, trace, servers, gpus_per_server, slot_seconds, pauses, seed,
    ...) as plain values. ``counts``: rescales, migrations, preemptions, decisions, failures. ``end_at``: the
    last simulated instant. ``broken``: promised jobs that were late, each with a sentence on why.
    """

    settings: dict[str, str | int | float | bool]
    jobs: JobOutcomes
    cluster: ClusterHistory
    allocations: AllocationHistory
    counts: dict[str, int]
    end_at: float
    interrupted: bool
    wall_seconds: float
    setup_seconds: float
    peak_memory_bytes: int
    broken: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    loans: LoanHistory | None = None
