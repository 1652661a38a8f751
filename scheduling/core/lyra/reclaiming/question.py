"""A reclaim as arrays: the workers on each on-loan server, and what returning servers does to jobs (Lyra
section 3.4).

The rule itself is in `effects.py`.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.lyra.fleet import Fleet, WorkerMap
from scheduling.core.lyra.reclaiming.effects import effects_of
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray


class Layout(NamedTuple):
    """Pairs of job and server, indexed by job and by server."""

    #: Pairs of job i are ``job_offsets[i]`` to ``job_offsets[i + 1]``.
    job_offsets: IntArray
    #: The job of each pair.
    job: IntArray
    #: The server of each pair.
    server: IntArray
    #: Base workers of each pair.
    base: IntArray
    #: Flexible workers of each pair.
    flexible: IntArray
    #: GPUs of each pair.
    gpus: IntArray
    #: Pairs of server s are ``on_server[k]`` for k from ``server_offsets[s]`` to ``server_offsets[s + 1]``.
    server_offsets: IntArray
    #: Pairs in the order of their servers.
    on_server: IntArray
    #: Marks servers that can be returned.
    candidate: BoolArray
    #: Marks servers with usable GPUs.
    usable: BoolArray
    #: Candidates with a base worker of each job (the size of S_j).
    spread: IntArray
    #: Jobs with a base worker on each candidate (the size of J_s).
    hosted: IntArray


class Consequences(NamedTuple):
    """What returning a set of servers does to jobs."""

    #: Rows of the preempted jobs.
    preempted: IntArray
    #: For each scale-in, the job that loses flexible workers and continues.
    scale_in_job: IntArray
    #: For each scale-in, the server of these workers.
    scale_in_server: IntArray
    #: For each scale-in, the number of these workers.
    scale_in_workers: IntArray
    #: GPUs of preempted jobs on servers that stay.
    collateral_gpus: int


def layout_of(fleet: Fleet, workers: WorkerMap, gpus_per_worker: IntArray) -> Layout:
    """Index a worker map by job and by server."""
    jobs, servers = workers.offsets.size - 1, fleet.gpus.size
    job = np.repeat(np.arange(jobs), np.diff(workers.offsets))
    usable = fleet.gpus > 0
    candidate = fleet.on_loan & usable
    bound = (workers.base > 0) & candidate[workers.server]
    return Layout(
        job_offsets=workers.offsets,
        job=job,
        server=workers.server,
        base=workers.base,
        flexible=workers.flexible,
        gpus=(workers.base + workers.flexible) * gpus_per_worker[job],
        server_offsets=np.concatenate(([0], np.cumsum(np.bincount(workers.server, minlength=servers)))),
        on_server=np.argsort(workers.server, kind="stable"),
        candidate=candidate,
        usable=usable,
        spread=np.bincount(job[bound], minlength=jobs),
        hosted=np.bincount(workers.server[bound], minlength=servers),
    )


def workers_on(layout: Layout) -> IntArray:
    """Base and flexible workers on each server."""
    return _summed(layout.base + layout.flexible, layout.server, layout.usable.size)


def workers_of(layout: Layout) -> IntArray:
    """Base and flexible workers of each job on all servers."""
    return _summed(layout.base + layout.flexible, layout.job, layout.spread.size)


def _summed(counts: IntArray, key: IntArray, size: int) -> IntArray:
    """Sum of the counts with each key."""
    return np.bincount(key, weights=counts, minlength=size).astype(np.int64)


def server_fraction(layout: Layout, *, count_owned: bool = False) -> FloatArray:
    """The part of each pair in its server's preemption cost: one over the number of candidates with base
    workers of the job.

    This is Lyra's cost (Lyra section 3.4): a job on one server alone counts in full. With
    ``count_owned`` the number includes servers that can never be returned (spec A4).
    """
    spread = layout.spread
    if count_owned:
        anywhere = (layout.base > 0) & layout.usable[layout.server]
        spread = np.bincount(layout.job[anywhere], minlength=spread.size)
    return _of_bound_pairs(layout, 1.0 / np.maximum(spread, 1)[layout.job])


def gpu_fraction(layout: Layout) -> FloatArray:
    """The part of each pair by GPUs: the job's base GPUs there over its base GPUs on all candidates."""
    base_gpus = _of_bound_pairs(
        layout, layout.gpus * layout.base / np.maximum(layout.base + layout.flexible, 1)
    )
    total = np.bincount(layout.job, weights=base_gpus, minlength=layout.spread.size)
    return base_gpus / np.maximum(total, 1.0)[layout.job]


def _of_bound_pairs(layout: Layout, share: FloatArray) -> FloatArray:
    """``share`` where the job has base workers on a candidate, else 0."""
    return np.where((layout.base > 0) & layout.candidate[layout.server], share, 0.0)


def costs(layout: Layout, share: FloatArray) -> FloatArray:
    """Preemption cost of each server: the sum of its pairs' shares."""
    summed = np.bincount(layout.server, weights=share, minlength=layout.usable.size)
    return summed.astype(np.float64)


def consequences(layout: Layout, returned: IntArray) -> Consequences:
    """Which jobs are preempted, which shrink, and which GPUs become free elsewhere when these servers are
    returned."""
    goes = np.zeros(layout.usable.size, dtype=np.bool_)
    goes[returned] = True
    effects = effects_of(layout.job, layout.server, layout.base > 0, goes, layout.spread.size)
    leaving, of_preempted = goes[layout.server], effects.preempted[layout.job]
    scaled = np.flatnonzero(leaving & (layout.flexible > 0) & ~of_preempted)
    beside = of_preempted & ~leaving & layout.usable[layout.server]
    return Consequences(
        preempted=np.flatnonzero(effects.preempted),
        scale_in_job=layout.job[scaled],
        scale_in_server=layout.server[scaled],
        scale_in_workers=layout.flexible[scaled],
        collateral_gpus=int(layout.gpus[beside].sum()),
    )
