"""Layouts of workers on loaned servers: written by hand, drawn at random, or grown by best fit and churn."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any

import numpy as np

from scheduling.core.lyra.fleet import NO_ROLE, Fleet, Speeds, WorkerMap
from scheduling.core.lyra.reclaiming.choosing import ReclaimQuestion

GPUS_PER_SERVER = 8
Workers = tuple[int, int]
"""Base and flexible workers of a job on a server."""


def linear_speeds(jobs: int, most_workers: int = 64) -> Speeds:
    """Return speeds at which each worker does one iteration a second."""
    counts = np.arange(1, most_workers + 1)
    return Speeds(
        np.arange(jobs + 1) * most_workers, np.tile(counts, jobs), np.tile(counts.astype(np.float64), jobs)
    )


def question_of(
    jobs: Sequence[Mapping[int, Workers]],
    count: int,
    *,
    servers: int,
    gpus_per_worker: Sequence[int] | None = None,
    owned: Sequence[int] = (),
    **facts: Any,
) -> ReclaimQuestion:
    """Return the question which ``count`` servers to give back.

    ``jobs[i]`` maps servers to base and flexible workers. All servers have 8 GPUs; all but ``owned`` are on
    loan.
    """
    pairs = [(server, *counts) for job in jobs for server, counts in sorted(job.items())]
    columns = np.array(pairs, dtype=np.int64).reshape(-1, 3).T
    on_loan = np.ones(servers, dtype=np.bool_)
    on_loan[list(owned)] = False
    facts.setdefault("remaining_iterations", np.ones(len(jobs)))
    facts.setdefault("lent", linear_speeds(len(jobs)))
    return ReclaimQuestion(
        fleet=Fleet(np.full(servers, GPUS_PER_SERVER), on_loan, np.full(servers, NO_ROLE)),
        workers=WorkerMap(np.cumsum([0, *map(len, jobs)]), columns[0], columns[1], columns[2]),
        gpus_per_worker=np.array(gpus_per_worker or [1] * len(jobs), dtype=np.int64),
        servers=count,
        **facts,
    )


def inelastic(
    jobs: Mapping[str, Mapping[int, int]], count: int, *, servers: int, **facts: Any
) -> ReclaimQuestion:
    """Return a question about jobs with base workers only, one GPU each. ``jobs[name]`` maps servers,
    numbered from 1 as in the examples, to GPUs."""
    rows = [{server - 1: (gpus, 0) for server, gpus in job.items()} for job in jobs.values()]
    return question_of(rows, count, servers=servers, **facts)


def random_question(
    rng: np.random.Generator, *, elastic: bool = False, most_servers: int = 8
) -> ReclaimQuestion:
    """Return a question about a few jobs on up to ``most_servers`` servers, of which some are idle. With
    ``elastic`` some jobs have flexible workers, and a server may be owned."""
    servers = int(rng.integers(2, most_servers + 1))
    free = np.full(servers, GPUS_PER_SERVER)
    jobs: list[dict[int, Workers]] = []
    for _ in range(int(rng.integers(1, 3 * servers))):
        job: dict[int, Workers] = {}
        for server in rng.permutation(servers)[: rng.integers(1, 5)].tolist():
            gpus = int(rng.choice([1, 2, 4]))
            if free[server] >= gpus:
                flexible = int(rng.integers(0, gpus + 1)) if elastic and rng.random() < 0.5 else 0
                job[server] = (gpus - flexible, flexible)
                free[server] -= gpus
        if job:
            jobs.append(job)
    owned = [0] if elastic and servers > 2 and rng.random() < 0.5 else []
    return question_of(
        jobs,
        int(rng.integers(0, servers + 2)),
        servers=servers,
        owned=owned,
        remaining_iterations=rng.uniform(1.0, 100.0, len(jobs)),
        seed=int(rng.integers(1 << 30)),
    )


def servers_of_jobs(question: ReclaimQuestion) -> list[int]:
    """Return for each job the servers on loan with its base workers, as bits."""
    bits = []
    for job in range(question.workers.offsets.size - 1):
        low, high = question.workers.offsets[job : job + 2]
        pairs = zip(question.workers.server[low:high], question.workers.base[low:high], strict=True)
        bits.append(
            sum(1 << int(server) for server, base in pairs if base and question.fleet.on_loan[server])
        )
    return bits


def fewest_by_trying_everything(question: ReclaimQuestion) -> int:
    """Return the smallest number of preempted jobs over all sets of servers on loan."""
    candidates = np.flatnonzero(question.fleet.on_loan).tolist()
    count = min(max(question.servers, 0), len(candidates))
    subsets = np.array([sum(1 << server for server in chosen) for chosen in combinations(candidates, count)])
    jobs = np.array(servers_of_jobs(question), dtype=np.int64)
    return int(((subsets[:, None] & jobs[None, :]) != 0).sum(axis=1).min())


# Grown by best fit and churn --------------------------------------------------------------------


@dataclass(frozen=True)
class Mix:
    """Sizes of jobs. ``shares``: weight of each pair (GPUs per worker, workers); ``expansion``: factor by
    which the number of workers grows on loan."""

    shares: Mapping[tuple[int, int], float]
    expansion: int = 1


@dataclass
class _Servers:
    """Servers filled with jobs, some of which end. ``jobs[i]``: GPUs per worker, and workers by server; None
    once the job has ended."""

    free: np.ndarray
    jobs: list[tuple[int, dict[int, int]] | None]

    def place(self, gpus_per_worker: int, workers: int) -> bool:
        """Place all workers or none, each on the server with the least room that fits. Return success."""
        free = self.free.copy()
        workers_by_server: dict[int, int] = {}
        for _ in range(workers):
            fitting = np.flatnonzero(free >= gpus_per_worker)
            if not fitting.size:
                return False
            server = int(fitting[np.argmin(free[fitting])])
            free[server] -= gpus_per_worker
            workers_by_server[server] = workers_by_server.get(server, 0) + 1
        self.free = free
        self.jobs.append((gpus_per_worker, workers_by_server))
        return True

    def end(self, number: int) -> None:
        """End a job and free its GPUs."""
        job = self.jobs[number]
        if job is None:
            return
        gpus_per_worker, workers_by_server = job
        for server, workers in workers_by_server.items():
            self.free[server] += gpus_per_worker * workers
        self.jobs[number] = None


def best_fit_question(
    servers: int, count: int, mix: Mix, seed: int, *, churn: float = 0.15, misses: int = 20
) -> ReclaimQuestion:
    """Fill servers by best fit until ``misses`` jobs in a row do not fit; then end a share ``churn`` of the
    jobs and fill up again."""
    rng = np.random.default_rng(seed)
    cluster = _Servers(np.full(servers, GPUS_PER_SERVER), [])
    sizes, shares = np.array(list(mix.shares)), np.array(list(mix.shares.values()))

    def fill() -> None:
        missed = 0
        while missed < misses:
            gpus_per_worker, workers = sizes[rng.choice(len(sizes), p=shares / shares.sum())].tolist()
            missed = 0 if cluster.place(gpus_per_worker, workers * mix.expansion) else missed + 1

    fill()
    for number in rng.permutation(len(cluster.jobs))[: round(churn * len(cluster.jobs))].tolist():
        cluster.end(number)
    fill()
    alive = [job for job in cluster.jobs if job is not None]
    return question_of(
        [
            {server: (workers, 0) for server, workers in workers_by_server.items()}
            for _, workers_by_server in alive
        ],
        count,
        servers=servers,
        gpus_per_worker=[gpus_per_worker for gpus_per_worker, _ in alive],
    )


def asking_for(question: ReclaimQuestion, count: int) -> ReclaimQuestion:
    """Return the question with another number of servers to give back."""
    return replace(question, servers=count)
