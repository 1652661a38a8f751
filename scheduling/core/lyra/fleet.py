"""Servers of both kinds and the workers on them: what Lyra's algorithms look at (Lyra sections 3.2 to 3.5;
spec 1.3).

A job's *base* workers are the fewest it can run with; *flexible* workers are those beyond. A worker is some
GPUs of one server. A server that is on loan carries a role: it hosts base workers, or flexible ones only, so
that it can be returned without stopping anybody.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.kernels import kernel
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray

NO_ROLE, BASE, FLEXIBLE = 0, 1, 2
"""Roles of a server on loan. The first worker on an empty server gives it one; it is lost when the server
empties."""


class Fleet(NamedTuple):
    """One row a server: ``gpus`` that it has, whether it is ``on_loan`` from the inference cluster, and its
    ``role``.

    Servers that may not be used (lost, being returned) have no GPUs.
    """

    gpus: IntArray
    on_loan: BoolArray
    role: IntArray


class WorkerMap(NamedTuple):
    """How many workers of which job are on which server; each pair of job and server at most once.

    Entries of job i are ``offsets[i]`` to ``offsets[i + 1]``: ``server`` (a row of the fleet), ``base`` and
    ``flexible`` workers there.
    """

    offsets: IntArray
    server: IntArray
    base: IntArray
    flexible: IntArray


class Speeds(NamedTuple):
    """How fast jobs run, by number of workers, on GPUs of one kind.

    Entries of job i are ``offsets[i]`` to ``offsets[i + 1]``: numbers of ``workers``, ascending, the first
    its base, and ``rate`` there, in iterations per second. A job without entries cannot run on that kind.
    """

    offsets: IntArray
    workers: IntArray
    rate: FloatArray


@kernel
def rate_of(speeds: Speeds, job: int, workers: int) -> float:
    """Iterations per second of a job on so many workers: of the largest listed number that is no larger, else
    0."""
    rate = 0.0
    for entry in range(speeds.offsets[job], speeds.offsets[job + 1]):
        if speeds.workers[entry] > workers:
            break
        rate = speeds.rate[entry]
    return rate


def no_workers(jobs: int) -> WorkerMap:
    """Nobody runs anywhere."""
    nothing = np.zeros(0, dtype=np.int64)
    return WorkerMap(np.zeros(jobs + 1, dtype=np.int64), nothing, nothing, nothing)
