"""The base and flexible demands of jobs on owned and on-loan servers, and how fast the jobs run there (Lyra
3.2, 3.5)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from kernels.compiling import kernel
from scheduling.core.lyra.fleet import Speeds, WorkerMap, rate_of
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray

OWNED, LENT = 0, 1
"""Rows of every array by kind of servers: owned by the training cluster, and on loan from the inference
cluster."""

NO_KIND = -1


class Demands(NamedTuple):
    """What every job asks for: one row for each job, in the order (submission, id).

    A job without base workers is pending. A job is elastic if it lists more than one number of workers.
    """

    #: GPUs of one worker of each job.
    gpus_per_worker: IntArray
    #: Iterations left, as the scheduler estimates them.
    remaining: FloatArray
    #: All iterations of the job.
    work: FloatArray
    #: Seconds that the job has waited in the queue so far.
    waiting_seconds: FloatArray
    #: When the job last grew, in seconds on any axis. Jobs that grew last shrink first.
    grown_at: FloatArray
    #: Whether the job may use owned and on-loan servers at once.
    mixes: BoolArray
    #: Rates by number of workers on owned servers.
    owned: Speeds
    #: Rates by number of workers on on-loan servers.
    lent: Speeds


def demands_of(
    gpus_per_worker: ArrayLike,
    remaining: ArrayLike,
    owned: Speeds,
    lent: Speeds,
    *,
    work: ArrayLike | None = None,
    waiting_seconds: ArrayLike | None = None,
    grown_at: ArrayLike | None = None,
    mixes: ArrayLike | None = None,
) -> Demands:
    """Build `Demands` in the array layout that the kernels are compiled for.

    Defaults: ``work`` equals ``remaining``; no job has waited, has grown or may mix. Raises ValueError where
    lengths differ.
    """
    gpus = np.ascontiguousarray(gpus_per_worker, dtype=np.int64)
    jobs = gpus.size
    left = np.ascontiguousarray(remaining, dtype=np.float64)
    demands = Demands(
        gpus,
        left,
        left if work is None else np.ascontiguousarray(work, dtype=np.float64),
        np.zeros(jobs)
        if waiting_seconds is None
        else np.ascontiguousarray(waiting_seconds, dtype=np.float64),
        np.zeros(jobs) if grown_at is None else np.ascontiguousarray(grown_at, dtype=np.float64),
        np.zeros(jobs, dtype=np.bool_) if mixes is None else np.ascontiguousarray(mixes, dtype=np.bool_),
        owned,
        lent,
    )
    if any(column.size != jobs for column in demands[:6]) or {owned.offsets.size, lent.offsets.size} != {
        jobs + 1
    }:
        raise ValueError("every column of the demands has one row a job")
    return demands


@kernel
def speeds_on(demands: Demands, kind: int) -> Speeds:
    """Rates of all jobs on servers of one kind."""
    return demands.lent if kind == LENT else demands.owned


@kernel
def base_on(demands: Demands, job: int, kind: int) -> int:
    """The job's base demand on servers of one kind, in workers; 0 where the job cannot run there."""
    speeds = speeds_on(demands, kind)
    first = speeds.offsets[job]
    return speeds.workers[first] if speeds.offsets[job + 1] > first else 0


@kernel
def most_on(demands: Demands, job: int, kind: int) -> int:
    """The largest number of workers that the job can use on one kind of servers; 0 where it cannot run
    there."""
    speeds = speeds_on(demands, kind)
    last = speeds.offsets[job + 1]
    return speeds.workers[last - 1] if last > speeds.offsets[job] else 0


@kernel
def base_table(demands: Demands, jobs: IntArray, naive: bool) -> tuple[IntArray, IntArray]:
    """Base demands of ``jobs`` in GPUs, shaped (kind of servers, job), and the kind that each job prefers.

    The demand is 0 where a job cannot run. Elastic jobs prefer on-loan servers, since they can shrink at a
    reclaim. Jobs that may mix kinds prefer owned servers, and with ``naive`` all jobs do.
    """
    # Passing many arrays to a kernel costs more than these few steps, so they are not a call for each job.
    gpus_per_worker, mixes = demands.gpus_per_worker, demands.mixes
    owned_offsets, owned_workers = demands.owned.offsets, demands.owned.workers
    lent_offsets, lent_workers = demands.lent.offsets, demands.lent.workers
    gpus = np.zeros((2, jobs.size), dtype=np.int64)
    prefers = np.full(jobs.size, OWNED)
    for position in range(jobs.size):
        job = jobs[position]
        owned = owned_offsets[job + 1] - owned_offsets[job]
        lent = lent_offsets[job + 1] - lent_offsets[job]
        if owned > 0:
            gpus[OWNED, position] = owned_workers[owned_offsets[job]] * gpus_per_worker[job]
        if lent > 0:
            gpus[LENT, position] = lent_workers[lent_offsets[job]] * gpus_per_worker[job]
            if max(owned, lent) > 1 and not naive and not mixes[job]:
                prefers[position] = LENT
    return gpus, prefers


@kernel
def part_rate(speeds: Speeds, job: int, workers: int) -> float:
    """Iterations per second that workers on one kind of servers add to a job on both kinds.

    Fewer workers than the base add their share of the base's rate.
    """
    first = speeds.offsets[job]
    if workers == 0 or speeds.offsets[job + 1] == first:
        return 0.0
    if workers < speeds.workers[first]:
        return float(speeds.rate[first] * workers / speeds.workers[first])
    return rate_of(speeds, job, workers)


@kernel
def combined_rate(
    demands: Demands, job: int, owned_workers: int, lent_workers: int, efficiency: float
) -> float:
    """Iterations per second of a job with workers on owned and on on-loan servers.

    On both kinds the rate is the sum of the two parts, times ``efficiency``.
    """
    if lent_workers == 0:
        return rate_of(demands.owned, job, owned_workers)
    if owned_workers == 0:
        return rate_of(demands.lent, job, lent_workers)
    together = part_rate(demands.owned, job, owned_workers) + part_rate(demands.lent, job, lent_workers)
    return efficiency * together


@kernel
def rates_with(demands: Demands, on_loan: BoolArray, workers: WorkerMap, efficiency: float) -> FloatArray:
    """Iterations per second of every job with the given workers; 0 for a job without workers."""
    offsets, server, base, flexible = workers.offsets, workers.server, workers.base, workers.flexible
    on_owned, on_lent = demands.owned, demands.lent
    rates = np.zeros(offsets.size - 1)
    for job in range(rates.size):
        owned, lent = 0, 0
        for entry in range(offsets[job], offsets[job + 1]):
            if on_loan[server[entry]]:
                lent += base[entry] + flexible[entry]
            else:
                owned += base[entry] + flexible[entry]
        if owned > 0 and lent > 0:
            rates[job] = combined_rate(demands, job, owned, lent, efficiency)
        elif owned > 0:
            rates[job] = rate_of(on_owned, job, owned)
        elif lent > 0:
            rates[job] = rate_of(on_lent, job, lent)
    return rates


@kernel
def listed_extra(speeds: Speeds, job: int, base: int, extra: int) -> int:
    """The most workers beyond ``base``, at most ``extra``, that add up to a number of workers listed for the
    job."""
    listed = 0
    for entry in range(speeds.offsets[job], speeds.offsets[job + 1]):
        beyond = speeds.workers[entry] - base
        if beyond > extra:
            break
        listed = max(listed, beyond)
    return listed
