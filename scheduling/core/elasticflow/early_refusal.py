"""Early refusal by GPU time: a necessary condition for all promises (ElasticFlow Theorem 1).

To meet its deadline a job needs at least the GPU time of the best mix of its levels. If the promises and a
newcomer together need more GPU time by some instant than the cluster has, no plans keep all promises, and
admission refuses without a search. The converse does not hold: admission decides on the others.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf

import numpy as np

from kernels.compiling import kernel, leaf
from scheduling.core.plans.slots import Slots
from scheduling.core.plans.timeline import Timeline
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import TIME_TOLERANCE, JobArrays
from scheduling.core.question.snapshot import FloatArray, IntArray

INSTANTS = 128
"""Instants at which the GPU time that promises need is summed."""
STEP = 1.1
"""Factor between the distances of two neighbouring instants from the next slot."""
ROUNDING = 1e-6
"""Tolerance of the comparison per job, as a fraction of the GPU time there is; plans are exact only to
`TIME_TOLERANCE`."""


@leaf
def least_gpu_time(jobs: JobArrays, job: int, work: float, seconds: float) -> float:
    """The least GPU seconds for ``work`` iterations within ``seconds``, on any mix of levels over time.

    This is the lower convex envelope of GPUs over throughput, at the needed rate (Jensen's inequality). If
    no level is fast enough, it is the GPU time of the fastest level for all ``seconds``.
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
    """The least GPU seconds between the next slot and ``until`` with which the job can end by ``due``.

    ``due``: when the last iteration must end. Both times are seconds from now.
    """
    origin = slots.origin
    count = jobs.level_count[job]
    if count == 0 or jobs.finished_at[job] < inf or until <= origin or due <= origin:
        return 0.0
    work = jobs.work[job]
    if jobs.locked[job]:
        # The timeline already lacks the GPUs of a locked job: its work until then is deducted.
        for level in range(count):
            if jobs.levels[job, level] == jobs.gpus[job]:
                work -= jobs.throughput[job, level] * (jobs.locked_until[job] - origin)
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
    """Add the job's `must_have` GPU seconds at each of the ascending ``instants`` to ``needs``."""
    for index in range(instants.size):
        needed = must_have(jobs, row, due, slots, instants[index])
        needs[index] += needed
        if instants[index] >= due + 2 * TIME_TOLERANCE:
            # After its deadline the job needs no further GPU time.
            for later in range(index + 1, instants.size):
                needs[later] += needed
            return


@leaf
def sum_of_needs(jobs: JobArrays, rows: IntArray, due: FloatArray, slots: Slots, until: float) -> float:
    """The sum of `must_have` over the jobs of ``rows`` at the instant ``until``, in GPU seconds."""
    total = 0.0
    for row in rows:
        total += must_have(jobs, row, due[row], slots, until)
    return total


@leaf
def gpu_time_until(timeline: Timeline, until: float) -> float:
    """Free GPU seconds of the timeline before ``until``."""
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
    """Free GPU seconds of the timeline before each of the ``instants``."""
    there = np.empty(instants.size)
    for index in range(instants.size):
        there[index] = gpu_time_until(timeline, instants[index])
    return there


class GpuTimeNeeded:
    """The GPU time that the promises of a decision need by each instant, updated as promises are made.

    Present promises may use the failure reserve and their failure slack, so both count as capacity.
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
        """Whether the promises to ``rows`` surely leave too little GPU time for the newcomer ``row``.

        ``rows`` excludes held offers: the newcomer might be the one that accepts such an offer.
        """
        problem = self._problem
        self._count(rows)
        due = float(problem.due[row] - problem.slack_seconds[row])
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
        """Update the sums to the promises ``rows``; new promises are appended to ``rows``."""
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
