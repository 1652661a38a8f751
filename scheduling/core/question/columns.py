"""Jobs as columns: the form in which the core works. Row i of every column is one job.

A snapshot's jobs are turned into columns once per decision; a caller that keeps columns itself, as the
simulator does, hands them over as they are.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import chain
from typing import NamedTuple

import numpy as np

from scheduling.core.kernels import kernel
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import (
    FloatArray,
    IntArray,
    JobSnapshot,
    ScalingCurve,
    ServiceClass,
)

SLO, SOFT, BEST_EFFORT = 0, 1, 2
"""Service classes as they stand in `JobColumns.service_class`."""

CODES = {ServiceClass.SLO: SLO, ServiceClass.SOFT: SOFT, ServiceClass.BEST_EFFORT: BEST_EFFORT}
NO_LEVEL = np.iinfo(np.int64).max
"""Stands in the columns of a curve matrix beyond a job's own levels."""


class CurveColumns(NamedTuple):
    """Scaling curves of many jobs: row i holds job i's levels, ascending, then NO_LEVEL.

    ``throughput`` and ``pause`` are 0 beyond the levels. Shapes (jobs, most levels of any job).
    """

    levels: IntArray
    throughput: FloatArray
    pause: FloatArray


@dataclass(frozen=True)
class JobColumns:
    """Unfinished jobs in the order (submission, id). Times are on the caller's axis, in seconds.

    ``curves``: what elastic policies scale along. ``measured``: every measured GPU count, rising or not, for
    policies that run jobs on the size their user asked for. ``requested_gpus`` and ``requested_seconds``:
    that size and the time the job takes on it, 0 where nobody asked. ``addresses[offsets[i]:offsets[i +
    1]]``: GPUs that job i holds. ``attained_gpu_seconds``: GPU time that it has held so far. ``memory``: what
    a policy noted about the job at its last decision, a policy's own columns (`Policy.memory_columns`). The
    other columns are those of `JobSnapshot`.
    """

    ids: Sequence[str]
    service_class: IntArray
    submitted_at: FloatArray
    deadline_at: FloatArray
    remaining_iterations: FloatArray
    total_iterations: FloatArray
    curves: CurveColumns
    measured: CurveColumns
    newcomer: BoolArray
    promised: BoolArray
    at_risk: BoolArray
    locked: BoolArray
    gpus: IntArray
    pause_left: FloatArray
    finishing: FloatArray
    addresses: IntArray
    offsets: IntArray
    requested_gpus: IntArray
    requested_seconds: FloatArray
    attained_gpu_seconds: FloatArray
    memory: FloatArray
    project: IntArray

    @property
    def count(self) -> int:
        """How many jobs there are."""
        return int(self.gpus.size)


def columns_of(jobs: Sequence[JobSnapshot], memory_width: int = 0) -> JobColumns:
    """Columns of jobs that are sorted by (submission, id) already."""

    def column(name: str, dtype: type = float) -> np.ndarray:
        return np.array([getattr(job, name) for job in jobs], dtype=dtype)

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
        submitted_at=column("submitted_at"),
        deadline_at=column("deadline_at"),
        remaining_iterations=column("remaining_iterations"),
        total_iterations=np.maximum(column("total_iterations"), column("remaining_iterations")),
        curves=curves,
        measured=(
            stack_curves([job.measured or job.curve for job in jobs])
            if any(job.measured is not None for job in jobs)
            else curves
        ),
        newcomer=column("newcomer", np.bool_),
        promised=column("promised", np.bool_),
        at_risk=column("at_risk", np.bool_),
        locked=column("locked", np.bool_),
        gpus=column("gpus_now", np.int64),
        pause_left=column("pause_left_seconds"),
        finishing=column("finishing_seconds"),
        addresses=addresses,
        offsets=np.cumsum(lengths),
        requested_gpus=column("requested_gpus", np.int64),
        requested_seconds=column("requested_seconds"),
        attained_gpu_seconds=column("attained_gpu_seconds"),
        memory=memory,
        project=column("project", np.int64),
    )


def stack_curves(curves: Sequence[ScalingCurve]) -> CurveColumns:
    """Many curves as one matrix each for levels, throughput and pauses."""
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
    """Placements of some jobs, in their order: (addresses, offsets). A row of -1 holds nothing."""
    new_offsets = np.zeros(rows.size + 1, dtype=np.int64)
    for row in range(rows.size):
        held = 0
        if rows[row] >= 0:
            held = offsets[rows[row] + 1] - offsets[rows[row]]
        new_offsets[row + 1] = new_offsets[row] + held
    found = np.empty(new_offsets[rows.size], dtype=np.int64)
    for row in range(rows.size):
        if rows[row] >= 0:
            found[new_offsets[row] : new_offsets[row + 1]] = addresses[
                offsets[rows[row]] : offsets[rows[row] + 1]
            ]
    return found, new_offsets
