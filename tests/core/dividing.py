"""Build fleets, jobs and divisions for tests of Lyra's scheduler tick."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from scheduling.core.lyra.base_and_flexible import Demands, demands_of
from scheduling.core.lyra.fleet import NO_ROLE, Fleet, Speeds, WorkerMap
from scheduling.core.lyra.tick import Division, TwoPhase, divide

Places = Mapping[int, tuple[int, int]]
"""Base and flexible workers by server."""


def linear(least: int, most: int, per_worker: float = 1.0) -> dict[int, float]:
    """Return rates that grow with the number of workers; every number from ``least`` to ``most`` is
    allowed."""
    return {workers: workers * per_worker for workers in range(least, most + 1)}


@dataclass(frozen=True)
class Job:
    """A job: ``remaining`` iterations, rates by number of workers on each kind, and the places of its
    workers."""

    remaining: float
    owned: Mapping[int, float] = field(default_factory=dict)
    lent: Mapping[int, float] = field(default_factory=dict)
    gpus: int = 1
    places: Places = field(default_factory=dict)
    mixes: bool = False
    work: float | None = None
    waiting_seconds: float = 0.0
    grown_at: float = 0.0


def inelastic(
    seconds: float, workers: int, gpus: int = 1, *, places: Places | None = None, lent: int = 0
) -> Job:
    """Return a job of this duration with a single number of workers, or ``lent`` workers on the other
    kind."""
    on_loan = {lent: 1.0} if lent else {}
    return Job(seconds, {workers: 1.0}, on_loan, gpus, places or {})


def fleet_of(owned: Sequence[int], lent: Sequence[int] = ()) -> Fleet:
    """Return a fleet of servers with these numbers of GPUs, first the owned servers, then those on loan."""
    gpus = np.array([*owned, *lent], dtype=np.int64)
    return Fleet(gpus, np.arange(gpus.size) >= len(owned), np.full(gpus.size, NO_ROLE))


def speeds_of(rates: Sequence[Mapping[int, float]]) -> Speeds:
    """Return the rates of all jobs on one kind of GPU."""
    offsets = np.concatenate(([0], np.cumsum([len(listed) for listed in rates]))).astype(np.int64)
    workers = np.array([number for listed in rates for number in listed], dtype=np.int64)
    return Speeds(
        offsets, workers, np.array([rate for listed in rates for rate in listed.values()], dtype=np.float64)
    )


def demands_for(jobs: Sequence[Job]) -> Demands:
    """Return the demands of the jobs."""
    return demands_of(
        [job.gpus for job in jobs],
        [job.remaining for job in jobs],
        speeds_of([job.owned for job in jobs]),
        speeds_of([job.lent for job in jobs]),
        work=[job.remaining if job.work is None else job.work for job in jobs],
        waiting_seconds=[job.waiting_seconds for job in jobs],
        grown_at=[job.grown_at for job in jobs],
        mixes=[job.mixes for job in jobs],
    )


def map_of(places: Sequence[Places]) -> WorkerMap:
    """Return the places of all workers."""
    entries = [
        (server, *numbers) for workers_by_server in places for server, numbers in workers_by_server.items()
    ]
    table = np.array(entries, dtype=np.int64).reshape(-1, 3)
    offsets = np.concatenate(
        ([0], np.cumsum([len(workers_by_server) for workers_by_server in places]))
    ).astype(np.int64)
    return WorkerMap(offsets, *(np.ascontiguousarray(column) for column in table.T))


def places_in(workers: WorkerMap, job: int) -> dict[int, tuple[int, int]]:
    """Return the places of one job's workers."""
    return {
        int(workers.server[entry]): (int(workers.base[entry]), int(workers.flexible[entry]))
        for entry in range(workers.offsets[job], workers.offsets[job + 1])
    }


def total_of(workers: WorkerMap, job: int) -> tuple[int, int]:
    """Return the numbers of a job's base and flexible workers."""
    counts = places_in(workers, job).values()
    return sum(base for base, _ in counts), sum(flexible for _, flexible in counts)


def division_of(fleet: Fleet, jobs: Sequence[Job], options: TwoPhase | None = None) -> Division:
    """Return the division of the fleet among the jobs."""
    return divide(fleet, map_of([job.places for job in jobs]), demands_for(jobs), options)
