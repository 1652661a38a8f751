"""Refusing early: GPU time until a deadline that no plan can do without (spec 2.3, Theorem 1).

A job that must do its work by a time takes at least the GPU time that a mix of its most efficient levels
takes. When the promises and a newcomer together must have more of it by some time than there is, no plans
keep all promises, and none need be looked for. The converse does not hold: what passes here is decided by
admission.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from scheduling.core.kernels import kernel, leaf
from scheduling.core.plans.slots import Slots
from scheduling.core.plans.timeline import Timeline
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import TIME_TOLERANCE, JobArrays
from scheduling.core.question.snapshot import FloatArray, IntArray

INSTANTS = 128
"""Times at which the GPU time that promises must have is kept, each later than the one before by the same
factor."""
STEP = 1.1
ROUNDING = 1e-6
"""What a job's plan may be off by, relative to the GPU time there is: instants this near count as one
(`TIME_TOLERANCE`)."""


@leaf
def least_gpu_time(jobs: JobArrays, job: int, work: float, seconds: float) -> float:
    """GPU seconds that ``work`` iterations within ``seconds`` take at least, on any mix of the job's levels
    over time.

    The lower convex envelope of GPUs over throughput, at the rate that is needed (Jensen's inequality). No
    more than all the time on the highest level where even that is not enough.
    """
    if work <= 0.0 or seconds <= 0.0 or jobs.level_count[job] == 0:
        return 0.0
    rate = work / seconds
    at_rate = 0.0
    at_gpus = 0.0
    count = jobs.level_count[job]
    level = -1
    while level < count - 1:
        # The next corner of the envelope: the level of least slope from here.
        best = -1
        best_slope = inf
        for other in range(level + 1, count):
            gain = jobs.throughput[job, other] - at_rate
            if gain <= 0.0:
                continue
            slope = (jobs.levels[job, other] - at_gpus) / gain
            if slope < best_slope:
                best_slope = slope
                best = other
        if best < 0:
            break
        if rate <= jobs.throughput[job, best]:
            return seconds * (at_gpus + best_slope * (rate - at_rate))
        at_rate = jobs.throughput[job, best]
        at_gpus = float(jobs.levels[job, best])
        level = best
    return seconds * at_gpus


@leaf
def must_have(jobs: JobArrays, job: int, due: float, slots: Slots, until: float) -> float:
    """GPU seconds from the next slot on to ``until`` without which the job cannot end its last iteration by
    ``due``."""
    origin = slots.origin
    count = jobs.level_count[job]
    if count == 0 or jobs.finished_at[job] < inf or until <= origin or due <= origin:
        return 0.0
    work = jobs.work[job]
    if jobs.locked[job]:
        # The next slot of a locked job is out of the free GPUs already.
        for level in range(count):
            if jobs.levels[job, level] == jobs.gpus[job]:
                work -= jobs.throughput[job, level] * slots.seconds
    lowest = float(jobs.levels[job, 0])
    fastest = 0.0
    for level in range(count):
        fastest = max(fastest, jobs.throughput[job, level])
    end = due + 2 * TIME_TOLERANCE
    work -= 2 * TIME_TOLERANCE * fastest
    if until < end:
        return least_gpu_time(jobs, job, work - fastest * (end - until), until - origin)
    taken = least_gpu_time(jobs, job, work, end - origin)
    if taken > 0.0 and jobs.gpus[job] == 0:
        pause = inf
        for level in range(count):
            pause = min(pause, jobs.pause[job, level])
        taken += pause * lowest
    return taken


@leaf
def add_needs(
    jobs: JobArrays, row: int, due: float, slots: Slots, instants: FloatArray, needs: FloatArray
) -> None:
    """Add what a job must have by each of the ``instants``, which ascend, to ``needs``."""
    for index in range(instants.size):
        needed = must_have(jobs, row, due, slots, instants[index])
        needs[index] += needed
        if instants[index] >= due + 2 * TIME_TOLERANCE:
            # From its deadline on it needs no more.
            for later in range(index + 1, instants.size):
                needs[later] += needed
            return


@leaf
def sum_of_needs(jobs: JobArrays, rows: IntArray, due: FloatArray, slots: Slots, until: float) -> float:
    """What the jobs of ``rows`` must have until one time, in GPU seconds."""
    total = 0.0
    for row in rows:
        total += must_have(jobs, row, due[row], slots, until)
    return total


@leaf
def gpu_time_until(timeline: Timeline, until: float) -> float:
    """GPU seconds of the timeline before ``until``."""
    times, free, count = timeline
    total = 0.0
    for piece in range(count):
        begin = times[piece]
        if begin >= until:
            break
        end = until
        if piece + 1 < count:
            end = min(until, times[piece + 1])
        total += max(free[0, piece], 0) * (end - begin)
    return total


@kernel
def gpu_time_by(timeline: Timeline, instants: FloatArray) -> FloatArray:
    """GPU seconds of the timeline before each of the ``instants``."""
    there = np.empty(instants.size)
    for index in range(instants.size):
        there[index] = gpu_time_until(timeline, instants[index])
    return there


class GpuTimeNeeded:
    """What the promises of a decision must have of the GPUs by a row of times, kept as promises are made.

    Present promises may use the reserve and their slack for failures, so both are counted as theirs.
    """

    def __init__(self, problem: Problem) -> None:
        self._problem = problem
        self._open = problem.opened
        steps = STEP ** np.arange(INSTANTS, dtype=np.float64)
        self._instants: FloatArray = problem.origin + problem.slot * steps
        self._there = gpu_time_by(self._open, self._instants)
        self._needs = np.zeros(INSTANTS)
        self._counted: list[int] = []

    def is_missing(self, rows: Sequence[int], row: int) -> bool:
        """Whether GPU time is missing for sure for a newcomer beside the promises to ``rows``: then it need
        not be tried.

        ``rows`` is without held offers. What they hold is not counted against a newcomer, which might be one
        of them.
        """
        problem = self._problem
        self._count(rows)
        due = float(problem.due[row]) - problem.slack_seconds
        own = np.zeros(INSTANTS)
        add_needs(problem.jobs, row, due, problem.slots, self._instants, own)
        tolerated = 1.0 + ROUNDING * (1 + len(rows))
        if ((own > 0.0) & (self._needs + own > self._there * tolerated)).any():
            return True
        promised = np.array(self._counted, dtype=np.int64)
        others = sum_of_needs(problem.jobs, promised, problem.due, problem.slots, due)
        needed = must_have(problem.jobs, row, due, problem.slots, due)
        return bool(others + needed > gpu_time_until(self._open, due) * tolerated)

    def _count(self, rows: Sequence[int]) -> None:
        """Bring what is counted to the promises there are; newcomers that were promised come last of them."""
        own = list(rows)
        if own[: len(self._counted)] != self._counted:
            self._needs[:] = 0.0
            self._counted = []
        for row in own[len(self._counted) :]:
            add_needs(
                self._problem.jobs, row, self._problem.due[row], self._problem.slots,
                self._instants, self._needs,
            )  # fmt: skip
        self._counted = own
