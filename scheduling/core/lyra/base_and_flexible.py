"""What jobs ask for on servers of each kind, base and flexible, and how fast they run there (Lyra 3.2, 3.5;
spec 1.4 to 1.6)."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike

from scheduling.core.kernels import kernel
from scheduling.core.lyra.fleet import Speeds, WorkerMap, rate_of
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray

OWNED, LENT = 0, 1
"""Kinds of servers: dedicated to training, and on loan from the inference cluster. Arrays by kind have two
rows."""

NO_KIND = -1


class Demands(NamedTuple):
    """One row a job, in the order of (submission, id). A job that has no base workers is pending.

    ``gpus_per_worker``; ``remaining`` and ``work``: iterations left, as believed, and in all;
    ``waiting_seconds``: time spent in the queue so far; ``grown_at``: when it last grew, in seconds on any
    axis, for growth that is taken back latest first; ``mixes``: may use both kinds at once; ``owned`` and
    ``lent``: rates by number of workers on each kind. More than one entry means elastic.
    """

    gpus_per_worker: IntArray
    remaining: FloatArray
    work: FloatArray
    waiting_seconds: FloatArray
    grown_at: FloatArray
    mixes: BoolArray
    owned: Speeds
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
    """Demands in the layout that the kernels are compiled for.

    Left out: ``work`` is what remains, nobody waited or grew, nobody mixes. Raises ValueError where lengths
    differ.
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
    """Rates on servers of one kind."""
    return demands.lent if kind == LENT else demands.owned


@kernel
def base_on(demands: Demands, job: int, kind: int) -> int:
    """The job's base demand on that kind, in workers; 0 where it cannot run there."""
    speeds = speeds_on(demands, kind)
    first = speeds.offsets[job]
    return speeds.workers[first] if speeds.offsets[job + 1] > first else 0


@kernel
def most_on(demands: Demands, job: int, kind: int) -> int:
    """The greatest number of workers the job can have on that kind; 0 where it cannot run there."""
    speeds = speeds_on(demands, kind)
    last = speeds.offsets[job + 1]
    return speeds.workers[last - 1] if last > speeds.offsets[job] else 0


@kernel
def base_table(demands: Demands, jobs: IntArray, naive: bool) -> tuple[IntArray, IntArray]:
    """The base demand of ``jobs`` in GPUs by kind (row), 0 where they cannot run, and the kind that each
    prefers.

    Elastic jobs prefer servers on loan: they can shrink when these are asked back. Not so with ``naive``, and
    mixing jobs do not (spec 2.5 step 1).
    """
    # A call that is handed many arrays costs more than these few steps, hence the loop over plain arrays.
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
    """What workers of one kind contribute to a mix: below the base, their share of its rate."""
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
    """Iterations per second with workers on owned and on lent servers.

    With both, the sum of what each kind contributes, times ``efficiency`` (spec 1.6).
    """
    if lent_workers == 0:
        return rate_of(demands.owned, job, owned_workers)
    if owned_workers == 0:
        return rate_of(demands.lent, job, lent_workers)
    together = part_rate(demands.owned, job, owned_workers) + part_rate(demands.lent, job, lent_workers)
    return efficiency * together


@kernel
def rates_with(demands: Demands, on_loan: BoolArray, workers: WorkerMap, efficiency: float) -> FloatArray:
    """Iterations per second of every job with its workers; 0 without any."""
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
    """The most workers beyond ``base``, at most ``extra``, with which the job's number is a listed one."""
    listed = 0
    for entry in range(speeds.offsets[job], speeds.offsets[job + 1]):
        beyond = speeds.workers[entry] - base
        if beyond > extra:
            break
        listed = max(listed, beyond)
    return listed
