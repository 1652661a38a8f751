"""Arrays that the kernels share. Times are seconds since the snapshot's ``now``."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kernels.compiling import kernel, leaf
from scheduling.core.question.snapshot import FloatArray, IntArray

BoolArray = NDArray[np.bool_]

TIME_TOLERANCE = 1e-6
"""Two times closer than this many seconds are equal; this also covers rounding of deadlines."""


def rows_where(mask: BoolArray) -> IntArray:
    """Rows for which the mask is true, ascending."""
    found: IntArray = mask.nonzero()[0]
    return found


@dataclass(frozen=True)
class Placements:
    """The GPUs of every job."""

    #: GPU addresses by job; those of a moved job are ascending.
    addresses: IntArray
    #: Job i holds ``addresses[offsets[i]:offsets[i + 1]]``.
    offsets: IntArray

    def of(self, row: int) -> tuple[int, ...]:
        """GPU addresses of one job."""
        return tuple(self.addresses[self.offsets[row] : self.offsets[row + 1]].tolist())


class JobArrays(NamedTuple):
    """All jobs of a decision as they will be at ``next_slot_at``, the end of the frozen head.

    Row i of ``levels``, ``throughput`` and ``pause`` holds job i's curve in its first ``level_count[i]``
    columns.
    """

    #: Levels in GPUs, shaped (job, level).
    levels: IntArray
    #: Iterations per second at each level.
    throughput: FloatArray
    #: Seconds of pause of a change to each level.
    pause: FloatArray
    #: Number of levels of each job.
    level_count: IntArray
    #: Iterations left.
    work: FloatArray
    #: GPUs that the job holds now.
    gpus: IntArray
    #: Seconds left of a pause that has begun.
    pause_left: FloatArray
    #: When the last iteration ends if it ends within the frozen head, else infinity.
    finished_at: FloatArray
    #: Seconds to store the final weights.
    finishing: FloatArray
    #: Whether the job keeps its GPUs in any case.
    locked: BoolArray
    #: Until when a locked job keeps them: the end of the next slot, or later where they are blocked for
    #: longer.
    locked_until: FloatArray
    #: The earliest time at which the job may start.
    earliest: FloatArray


class Plans(NamedTuple):
    """One plan for each row; a plan of length 0 means no plan."""

    #: When each piece begins, shaped (job, piece).
    time: FloatArray
    #: GPUs from that time on; the last piece is 0.
    gpus: IntArray
    #: Number of pieces of each plan.
    length: IntArray
    #: When the last iteration ends.
    finish: FloatArray
    #: GPU seconds held until then.
    gpu_time: FloatArray
    #: Until when the job's GPUs are already taken out of every timeline: those of locked jobs are taken
    #: before any planning.
    reserved_until: FloatArray


class Draft(NamedTuple):
    """Scratch arrays for the pieces of one plan."""

    #: When each piece begins.
    time: FloatArray
    #: GPUs from that time on.
    gpus: IntArray


@kernel
def new_draft(pieces: int) -> Draft:
    """Scratch arrays for ``pieces`` pieces."""
    return Draft(np.zeros(pieces), np.zeros(pieces, dtype=np.int64))


def no_plans(jobs: int, width: int = 8) -> Plans:
    """Empty plans of ``jobs`` jobs, with room for ``width`` pieces each."""
    return Plans(
        time=np.zeros((jobs, width)),
        gpus=np.zeros((jobs, width), dtype=np.int64),
        length=np.zeros(jobs, dtype=np.int64),
        finish=np.full(jobs, np.inf),
        gpu_time=np.zeros(jobs),
        reserved_until=np.full(jobs, -np.inf),
    )


def copy_plans(plans: Plans) -> Plans:
    """An independent copy."""
    return Plans(
        plans.time.copy(),
        plans.gpus.copy(),
        plans.length.copy(),
        plans.finish.copy(),
        plans.gpu_time.copy(),
        plans.reserved_until.copy(),
    )


@kernel
def plans_copied(plans: Plans) -> Plans:
    """`copy_plans` within kernels."""
    return Plans(
        plans.time.copy(),
        plans.gpus.copy(),
        plans.length.copy(),
        plans.finish.copy(),
        plans.gpu_time.copy(),
        plans.reserved_until.copy(),
    )


@kernel
def widened(plans: Plans, width: int) -> Plans:
    """The same plans with room for at least ``width`` pieces each."""
    jobs, old_width = plans.time.shape
    if width <= old_width:
        return plans
    new_width = max(width, 2 * old_width)
    time = np.zeros((jobs, new_width))
    gpus = np.zeros((jobs, new_width), dtype=np.int64)
    for job in range(jobs):
        for piece in range(plans.length[job]):
            time[job, piece] = plans.time[job, piece]
            gpus[job, piece] = plans.gpus[job, piece]
    return Plans(time, gpus, plans.length, plans.finish, plans.gpu_time, plans.reserved_until)


@kernel
def set_plan(plans: Plans, job: int, draft: Draft, pieces: int, finish: float, gpu_time: float) -> Plans:
    """Store the first ``pieces`` pieces of a draft as one job's plan. Returns the plans, in wider arrays
    where needed."""
    if pieces > plans.time.shape[1]:
        plans = widened(plans, pieces)
    write_plan(plans, job, draft, pieces, finish, gpu_time)
    return plans


@leaf
def write_plan(plans: Plans, job: int, draft: Draft, pieces: int, finish: float, gpu_time: float) -> None:
    """`set_plan` in place; the arrays must have room for the pieces."""
    for piece in range(pieces):
        plans.time[job, piece] = draft.time[piece]
        plans.gpus[job, piece] = draft.gpus[piece]
    plans.length[job] = pieces
    plans.finish[job] = finish
    plans.gpu_time[job] = gpu_time


def keep_plan(plans: Plans, job: int, draft: Draft, pieces: int, finish: float, gpu_time: float) -> Plans:
    """`set_plan` for callers that are no kernels: to hand arrays back from one costs more than the plan."""
    if pieces > plans.time.shape[1]:
        return set_plan(plans, job, draft, pieces, finish, gpu_time)
    write_plan(plans, job, draft, pieces, finish, gpu_time)
    return plans


@leaf
def level_index(jobs: JobArrays, job: int, gpus: int) -> int:
    """Column of level ``gpus`` in the job's curve, or -1 where that count is not a level."""
    for index in range(jobs.level_count[job]):
        if jobs.levels[job, index] == gpus:
            return index
    return -1


@leaf
def planned_gpus(plans: Plans, job: int, at: float) -> int:
    """GPUs that the job's plan holds at time ``at``."""
    held = 0
    for piece in range(plans.length[job]):
        if plans.time[job, piece] > at + TIME_TOLERANCE:
            break
        held = plans.gpus[job, piece]
    return held


@kernel
def differing(plans: Plans, others: Plans) -> BoolArray:
    """Marks jobs whose two plans hold different GPUs at some time."""
    differs = np.zeros(plans.length.size, dtype=np.bool_)
    for job in range(plans.length.size):
        differs[job] = plans.length[job] != others.length[job]
        if differs[job]:
            continue
        for piece in range(plans.length[job]):
            if (
                plans.gpus[job, piece] != others.gpus[job, piece]
                or abs(plans.time[job, piece] - others.time[job, piece]) > TIME_TOLERANCE
            ):
                differs[job] = True
    return differs


@leaf
def changed_beside(plans: Plans, others: Plans, job: int) -> bool:
    """Whether the plan of any job other than ``job`` holds different GPUs at some time, without any
    tolerance."""
    for row in range(plans.length.size):
        if row == job:
            continue
        if plans.length[row] != others.length[row]:
            return True
        for piece in range(plans.length[row]):
            if (
                plans.gpus[row, piece] != others.gpus[row, piece]
                or plans.time[row, piece] != others.time[row, piece]
            ):
                return True
    return False
