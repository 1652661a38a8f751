"""When a plan finishes if pauses of forced moves are added to those of its level changes."""

from __future__ import annotations

from collections.abc import Sequence
from math import inf
from typing import NamedTuple

import numpy as np

from kernels.compiling import kernel, leaf
from scheduling.core.question.arrays import TIME_TOLERANCE, JobArrays, Plans
from scheduling.core.question.snapshot import FloatArray, IntArray


class Charges(NamedTuple):
    """Pauses beyond those of a plan's own level changes. Row i of each array is one pause."""

    #: Row of the job.
    job: IntArray
    #: When the pause begins, in seconds from now.
    time: FloatArray
    #: Length of the pause, in seconds.
    seconds: FloatArray

    def and_then(self, job: Sequence[int], time: Sequence[float], seconds: Sequence[float]) -> Charges:
        """These charges followed by more."""
        if not len(job):
            return self
        return Charges(
            np.concatenate((self.job, np.array(job, dtype=np.int64))),
            np.concatenate((self.time, np.array(time, dtype=np.float64))),
            np.concatenate((self.seconds, np.array(seconds, dtype=np.float64))),
        )


NO_CHARGES = Charges(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))


@kernel
def grouped_by_job(job_of: IntArray, jobs: int) -> tuple[IntArray, IntArray]:
    """Group the positions of ``job_of`` by job; each group keeps its order.

    Returns (positions, where the group of each of the ``jobs`` jobs begins).
    """
    offsets = np.zeros(jobs + 1, dtype=np.int64)
    for job in job_of:
        offsets[job + 1] += 1
    for job in range(jobs):
        offsets[job + 1] += offsets[job]
    filled = offsets[:jobs].copy()
    order = np.empty(job_of.size, dtype=np.int64)
    for position in range(job_of.size):
        job = job_of[position]
        order[filled[job]] = position
        filled[job] += 1
    return order, offsets


@leaf
def _stored_finish(jobs: JobArrays, plans: Plans, job: int) -> float:
    """The finish of a job without iterations left: when it can begin to store its final weights."""
    finish: float = jobs.finished_at[job]
    origin = plans.time[job, 0]
    if finish + jobs.finishing[job] <= origin + TIME_TOLERANCE:
        return finish
    for piece in range(plans.length[job] - 1):
        if plans.gpus[job, piece] > 0:
            if piece > 0 or plans.gpus[job, piece] != jobs.gpus[job]:
                finish = plans.time[job, piece] + jobs.pause[job, 0]
            enough = finish + jobs.finishing[job] <= plans.time[job, piece + 1] + TIME_TOLERANCE
            return finish if enough else inf
    return inf


@leaf
def _rate_and_pause(jobs: JobArrays, job: int, gpus: int) -> tuple[float, float]:
    """Throughput on ``gpus`` GPUs, and pause of a change onto them; both 0 if ``gpus`` is no level."""
    for level in range(jobs.level_count[job]):
        if jobs.levels[job, level] == gpus:
            return jobs.throughput[job, level], jobs.pause[job, level]
    return 0.0, 0.0


@leaf
def charged_finish(
    jobs: JobArrays, plans: Plans, job: int, charge_time: FloatArray, charge_seconds: FloatArray
) -> tuple[float, float]:
    """When the job's last iteration ends under its plan with all charges.

    The charges are sorted by time. Returns (finish in seconds from now, GPU seconds until then). The finish
    is infinity if the plan does not complete the work, or releases the GPUs before the final weights are
    stored.
    """
    count = plans.length[job]
    if count == 0:
        return inf, 0.0
    release = plans.time[job, count - 1]
    if jobs.finished_at[job] < inf:
        return _stored_finish(jobs, plans, job), 0.0
    work = jobs.work[job]
    held = jobs.gpus[job]
    pause_left = jobs.pause_left[job]
    gpu_time = 0.0
    charge = 0
    for piece in range(count - 1):
        at = plans.time[job, piece]
        end = plans.time[job, piece + 1]
        gpus = plans.gpus[job, piece]
        rate, pause = _rate_and_pause(jobs, job, gpus)
        if gpus != held:
            pause_left = max(pause_left, pause) if gpus > 0 else 0.0
            held = gpus
        while at < end - TIME_TOLERANCE:
            while charge < charge_time.size and charge_time[charge] <= at + TIME_TOLERANCE:
                if gpus > 0:
                    pause_left = max(pause_left, charge_seconds[charge])
                charge += 1
            stop = end
            if charge < charge_time.size and charge_time[charge] < end:
                stop = charge_time[charge]
            if gpus > 0:
                productive = stop - at - pause_left
                if rate > 0.0 and (productive + TIME_TOLERANCE) * rate >= work:
                    finish = at + pause_left + work / rate
                    gpu_time += gpus * (finish - at)
                    if finish + jobs.finishing[job] > release + 2 * TIME_TOLERANCE:
                        return inf, gpu_time
                    return finish, gpu_time
                gpu_time += gpus * (stop - at)
                if productive > 0.0:
                    work -= productive * rate
                    pause_left = 0.0
                else:
                    pause_left -= stop - at
            at = stop
    return inf, gpu_time


@kernel
def planned_gpu_time(jobs: JobArrays, plans: Plans, rows: IntArray) -> FloatArray:
    """GPU seconds of each plan of ``rows`` up to its last iteration, without charges."""
    nothing = np.zeros(0)
    taken = np.zeros(rows.size)
    for position in range(rows.size):
        _, taken[position] = charged_finish(jobs, plans, rows[position], nothing, nothing)
    return taken


@leaf
def seconds_left(finish: float, latest: float) -> float:
    """Seconds from ``finish`` to ``latest``; infinity for a job without a deadline."""
    if latest == inf:
        return inf
    return latest - finish


@kernel
def charge_plans(jobs: JobArrays, plans: Plans, rows: IntArray, charges: Charges) -> None:
    """Set the finish and the GPU time of the plans of ``rows``. The charges are sorted by time."""
    order, offsets = grouped_by_job(charges.job, plans.length.size)
    time = charges.time[order]
    seconds = charges.seconds[order]
    for row in rows:
        low = offsets[row]
        high = offsets[row + 1]
        plans.finish[row], plans.gpu_time[row] = charged_finish(
            jobs, plans, row, time[low:high], seconds[low:high]
        )


@kernel
def slack_of(
    jobs: JobArrays, plans: Plans, rows: IntArray, latest: FloatArray, charges: Charges
) -> FloatArray:
    """Seconds, by row, between the charged finish of each plan and ``latest``; infinity for all but ``rows``.

    The charges are sorted by time.
    """
    slack = np.full(latest.size, inf)
    order, offsets = grouped_by_job(charges.job, latest.size)
    time = charges.time[order]
    seconds = charges.seconds[order]
    for row in rows:
        low = offsets[row]
        high = offsets[row + 1]
        finish, _ = charged_finish(jobs, plans, row, time[low:high], seconds[low:high])
        slack[row] = seconds_left(finish, latest[row])
    return slack


@kernel
def charge_and_find_late(
    jobs: JobArrays, plans: Plans, rows: IntArray, latest: FloatArray, charges: Charges
) -> IntArray:
    """Set the finish of those plans of ``rows`` that have charges; return the rows that end after ``latest``.

    ``latest``: when the last iteration must end, by row, in seconds from now.
    """
    order = np.argsort(charges.time, kind="mergesort")
    charged = np.zeros(latest.size, dtype=np.bool_)
    for job in charges.job:
        charged[job] = True
    in_time = Charges(charges.job[order], charges.time[order], charges.seconds[order])
    charge_plans(jobs, plans, rows[charged[rows]], in_time)
    late = np.zeros(rows.size, dtype=np.bool_)
    for position in range(rows.size):
        late[position] = plans.finish[rows[position]] > latest[rows[position]] + 2 * TIME_TOLERANCE
    return rows[late]
