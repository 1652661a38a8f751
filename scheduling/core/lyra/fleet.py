"""Owned and on-loan servers and the workers on them (Lyra sections 3.2 to 3.5).

The *base* workers of a job are the fewest with which it can run; *flexible* workers are those beyond. A
worker uses GPUs of one server. An on-loan server has a role: it hosts base workers, or only flexible workers.
A server with only flexible workers can be returned without preempting a job.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.compiling import kernel
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray

NO_ROLE, BASE, FLEXIBLE = 0, 1, 2
"""Roles of a server on loan. The first worker on an empty server gives it one; it is lost when the server
empties."""


class Fleet(NamedTuple):
    """All servers, one row for each."""

    #: Usable GPUs: 0 for a server that is lost or being returned.
    gpus: IntArray
    #: Whether the server is on loan from the inference cluster.
    on_loan: BoolArray
    #: Role of an on-loan server (`roles_with`).
    role: IntArray


class WorkerMap(NamedTuple):
    """How many workers of each job are on each server; a pair of job and server occurs at most once."""

    #: Entries of job i are ``offsets[i]`` to ``offsets[i + 1]``.
    offsets: IntArray
    #: The server of each entry, a row of the fleet.
    server: IntArray
    #: Base workers of the job on that server.
    base: IntArray
    #: Flexible workers of the job on that server.
    flexible: IntArray


class Speeds(NamedTuple):
    """Throughput of jobs by number of workers, on one kind of servers.

    A job without entries cannot run there.
    """

    #: Entries of job i are ``offsets[i]`` to ``offsets[i + 1]``.
    offsets: IntArray
    #: Numbers of workers the job can use, ascending; the first is its base demand.
    workers: IntArray
    #: Iterations per second with that number of workers.
    rate: FloatArray


@kernel
def rate_of(speeds: Speeds, job: int, workers: int) -> float:
    """Iterations per second of a job on ``workers`` workers: the rate of the largest listed number that does
    not exceed it, or 0."""
    rate = 0.0
    for entry in range(speeds.offsets[job], speeds.offsets[job + 1]):
        if speeds.workers[entry] > workers:
            break
        rate = speeds.rate[entry]
    return rate


def no_workers(jobs: int) -> WorkerMap:
    """A worker map in which no job has workers."""
    nothing = np.zeros(0, dtype=np.int64)
    return WorkerMap(np.zeros(jobs + 1, dtype=np.int64), nothing, nothing, nothing)
