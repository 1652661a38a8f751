"""Jobs as columns, the form in which the core works: row i of every column is one job.

A snapshot's jobs are converted once for each decision. The simulator keeps its jobs as columns and passes
them directly.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from operator import attrgetter
from typing import NamedTuple

import numpy as np

from kernels.compiling import kernel
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import (
    FloatArray,
    IntArray,
    JobSnapshot,
    ScalingCurve,
    ServiceClass,
)

SLO, SOFT, BEST_EFFORT = 0, 1, 2
"""Codes of service classes in `JobColumns.service_class`."""

CODES = {ServiceClass.SLO: SLO, ServiceClass.SOFT: SOFT, ServiceClass.BEST_EFFORT: BEST_EFFORT}
NO_LEVEL = np.iinfo(np.int64).max
"""Fills the columns of a curve matrix beyond a job's levels."""


class CurveColumns(NamedTuple):
    """Scaling curves of many jobs, shaped (jobs, most levels of any job)."""

    #: Levels of each job, ascending, then NO_LEVEL.
    levels: IntArray
    #: Iterations per second at each level; 0 beyond the levels.
    throughput: FloatArray
    #: Seconds of pause at each level; 0 beyond the levels.
    pause: FloatArray


@dataclass(frozen=True)
class JobColumns:
    """Unfinished jobs in the order (submission, id). Times are seconds on the caller's axis.

    ``project`` is the number of the job's project. The other columns without a comment are those of
    `JobSnapshot`.
    """

    ids: Sequence[str]
    service_class: IntArray
    submitted_at: FloatArray
    deadline_at: FloatArray
    remaining_iterations: FloatArray
    total_iterations: FloatArray
    #: The levels along which elastic policies scale.
    curves: CurveColumns
    #: Every measured GPU count, even without rising throughput: for policies that run a job on the GPU count
    #: its user requested.
    measured: CurveColumns
    newcomer: BoolArray
    promised: BoolArray
    at_risk: BoolArray
    locked: BoolArray
    gpus: IntArray
    pause_left: FloatArray
    finishing: FloatArray
    failure_slack: FloatArray
    #: GPU addresses by job.
    addresses: IntArray
    #: Job i holds ``addresses[offsets[i]:offsets[i + 1]]``.
    offsets: IntArray
    #: The GPU count that the user requested; 0 for none.
    requested_gpus: IntArray
    #: Seconds that the job takes on it; 0 for none.
    requested_seconds: FloatArray
    #: GPU seconds that the job has held so far.
    attained_gpu_seconds: FloatArray
    #: What the policy noted about the job at its last decision (`Policy.memory_columns`).
    memory: FloatArray
    project: IntArray

    @property
    def count(self) -> int:
        """Number of jobs."""
        return int(self.gpus.size)


def columns_of(jobs: Sequence[JobSnapshot], memory_width: int = 0) -> JobColumns:
    """Columns of jobs that are already sorted by (submission, id)."""

    def columns(dtype: type, *names: str) -> np.ndarray:
        facts_of = attrgetter(*names)
        facts: np.ndarray = np.array([facts_of(job) for job in jobs], dtype=dtype)
        table: np.ndarray = facts.reshape(len(jobs), len(names)).T.copy()
        return table

    (
        submitted_at, deadline_at, remaining, total, pause_left, finishing, failure_slack, requested_seconds,
        attained,
    ) = columns(
        np.float64, "submitted_at", "deadline_at", "remaining_iterations", "total_iterations",
        "pause_left_seconds", "finishing_seconds", "failure_slack_seconds", "requested_seconds",
        "attained_gpu_seconds",
    )  # fmt: skip
    newcomer, promised, at_risk, locked = columns(np.bool_, "newcomer", "promised", "at_risk", "locked")
    gpus, requested_gpus, project = columns(np.int64, "gpus_now", "requested_gpus", "project")
    lengths = np.array([0] + [len(job.placement) for job in jobs], dtype=np.int64)
    addresses = np.fromiter(
        chain.from_iterable(job.placement for job in jobs), dtype=np.int64, count=int(lengths.sum())
    )
    memory = np.zeros((len(jobs), memory_width))
    for row, job in enumerate(jobs):
        memory[row, : len(job.memory)] = job.memory[:memory_width]
    curves = stack_curves([job.curve for job in jobs])
    return JobColumns(
        ids=tuple(job.id for job in jobs),
        service_class=np.array([CODES[job.service_class] for job in jobs], dtype=np.int64),
        submitted_at=submitted_at,
        deadline_at=deadline_at,
        remaining_iterations=remaining,
        total_iterations=np.maximum(total, remaining),
        curves=curves,
        measured=(
            stack_curves([job.measured or job.curve for job in jobs])
            if any(job.measured is not None for job in jobs)
            else curves
        ),
        newcomer=newcomer,
        promised=promised,
        at_risk=at_risk,
        locked=locked,
        gpus=gpus,
        pause_left=pause_left,
        finishing=finishing,
        failure_slack=failure_slack,
        addresses=addresses,
        offsets=np.cumsum(lengths),
        requested_gpus=requested_gpus,
        requested_seconds=requested_seconds,
        attained_gpu_seconds=attained,
        memory=memory,
        project=project,
    )


def stack_curves(curves: Sequence[ScalingCurve]) -> CurveColumns:
    """Curves of several jobs as matrices."""
    rows = len(curves)
    sizes = np.array([curve.levels.size for curve in curves], dtype=np.int64)
    width = max(1, int(sizes.max(initial=1)))
    inside = np.arange(width) < sizes[:, None]
    levels = np.full((rows, width), NO_LEVEL)
    throughput = np.zeros((rows, width))
    pause = np.zeros((rows, width))
    if rows:
        levels[inside] = np.concatenate([curve.levels for curve in curves])
        throughput[inside] = np.concatenate([curve.throughput for curve in curves])
        pause[inside] = np.concatenate([curve.pause_seconds for curve in curves])
    return CurveColumns(levels, throughput, pause)


@kernel
def regather(addresses: IntArray, offsets: IntArray, rows: IntArray) -> tuple[IntArray, IntArray]:
    """Placements of the jobs ``rows`` in that order: (addresses, offsets). A row of -1 holds no GPUs."""
    new_offsets = np.zeros(rows.size + 1, dtype=np.int64)
    for row in range(rows.size):
        held = 0
        if rows[row] >= 0:
            held = offsets[rows[row] + 1] - offsets[rows[row]]
        new_offsets[row + 1] = new_offsets[row] + held
    found = np.empty(new_offsets[rows.size], dtype=np.int64)
    for row in range(rows.size):
        if new_offsets[row + 1] > new_offsets[row]:
            found[new_offsets[row] : new_offsets[row + 1]] = addresses[
                offsets[rows[row]] : offsets[rows[row] + 1]
            ]
    return found, new_offsets
