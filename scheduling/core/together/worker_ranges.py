"""Scaling curves as Lyra's algorithms see them: a worker is one GPU, and a job's range is its levels."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np

from scheduling.core.lyra.base_and_flexible import demands_of
from scheduling.core.lyra.fleet import NO_ROLE, Fleet, Speeds
from scheduling.core.lyra.worker_changes import roles_with
from scheduling.core.placement.buddy_blocks import NOWHERE
from scheduling.core.problem.problem import Problem
from scheduling.core.question.arrays import BoolArray, JobArrays
from scheduling.core.question.snapshot import IntArray, JobSnapshot, ScalingCurve, ServerSnapshot
from scheduling.core.together.sharing import Servers, Sharing, count_workers, loaned_fleet


def borrowed_sharing(
    problem: Problem, servers: Sequence[ServerSnapshot], jobs: Sequence[JobSnapshot], blocked: IntArray
) -> Sharing:
    """The `Sharing` of a snapshot with on-loan servers; ``jobs`` are in the order of the problem's rows.

    ``blocked``: addresses of borrowed GPUs that no job holds and that may not be used now.
    """
    gpus = np.array([server.gpus for server in servers], dtype=np.int64)
    by_address = Servers(np.cumsum(gpus) - gpus, gpus)
    on_loan = np.array([server.on_loan for server in servers], dtype=np.bool_)
    usable = np.array([server.usable for server in servers], dtype=np.bool_)
    columns = problem.columns
    flexible = _beyond_base(problem)
    for row, job in enumerate(jobs):
        if job.flexible:
            flexible[columns.offsets[row] : columns.offsets[row + 1]] = job.flexible
    workers = count_workers(
        columns.addresses, columns.offsets, flexible, by_address.server_of(), _ones(problem)
    )
    fleet = loaned_fleet(by_address, usable, on_loan, roles_with(on_loan, workers))
    blocked_on = np.bincount(by_address.server_of()[blocked], minlength=gpus.size)
    fleet = fleet._replace(gpus=np.maximum(0, fleet.gpus - blocked_on))
    sharing = _sharing(
        problem, by_address, fleet, flexible, _lent_speeds([job.lent_curve for job in jobs]), blocked
    )
    return replace(sharing, same_kind=any(server.same_kind for server in servers))


def sharing_of(problem: Problem) -> Sharing:
    """The `Sharing` of a cluster without on-loan servers."""
    servers = _servers_of(problem.blocks.block_of, problem.blocks.server)
    usable = np.zeros(servers.gpus.size, dtype=np.bool_)
    usable[servers.server_of()[problem.blocks.base]] = True
    nothing = np.zeros(usable.size, dtype=np.bool_)
    fleet = loaned_fleet(servers, usable, nothing, np.full(usable.size, NO_ROLE))
    nowhere = _lent_speeds([None] * problem.count)
    return _sharing(problem, servers, fleet, _beyond_base(problem), nowhere, np.zeros(0, dtype=np.int64))


def _sharing(
    problem: Problem, servers: Servers, fleet: Fleet, flexible: BoolArray, lent: Speeds, blocked: IntArray
) -> Sharing:
    columns = problem.columns
    return Sharing(
        servers=servers,
        fleet=fleet,
        flexible=flexible,
        blocked=blocked,
        demands=demands_of(
            _ones(problem),
            columns.remaining_iterations,
            speeds_of_curves(problem.jobs, problem.count),
            lent,
            work=columns.total_iterations,
            waiting_seconds=np.maximum(0.0, problem.now - columns.submitted_at),
        ),
    )


def _ones(problem: Problem) -> IntArray:
    """One GPU for each worker of each job."""
    return np.ones(problem.count, dtype=np.int64)


def _beyond_base(problem: Problem) -> BoolArray:
    """Marks the GPUs beyond each job's lowest level, in the order of addresses."""
    columns, count = problem.columns, problem.count
    curves = problem.jobs
    base = np.where(curves.level_count[:count] > 0, curves.levels[:count, 0], 0)
    held = np.diff(columns.offsets)
    place_in_job = np.arange(columns.addresses.size) - np.repeat(columns.offsets[:-1], held)
    beyond: BoolArray = place_in_job >= np.repeat(base, held)
    return beyond


def _lent_speeds(curves: Sequence[ScalingCurve | None]) -> Speeds:
    """Rates on every level that was measured on borrowed GPUs."""
    sizes = [0 if curve is None else curve.levels.size for curve in curves]
    known = [curve for curve in curves if curve is not None]
    return Speeds(
        np.concatenate(([0], np.cumsum(sizes, dtype=np.int64))),
        np.concatenate([np.zeros(0, dtype=np.int64), *(curve.levels for curve in known)]),
        np.concatenate([np.zeros(0), *(curve.throughput for curve in known)]),
    )


def speeds_of_curves(curves: JobArrays, count: int) -> Speeds:
    """Rates on every level of the scaling curves of the first ``count`` jobs."""
    inside = np.arange(curves.levels.shape[1]) < curves.level_count[:count, None]
    return Speeds(
        np.concatenate(([0], np.cumsum(curves.level_count[:count]))),
        curves.levels[:count][inside],
        curves.throughput[:count][inside],
    )


def _servers_of(block_of: IntArray, server_of_block: IntArray) -> Servers:
    """Servers from aligned blocks; GPUs of unusable servers form servers of their own."""
    server = np.full(block_of.size, -1)
    usable = block_of != NOWHERE  # none at all, perhaps
    server[usable] = server_of_block[block_of[usable]]
    first = np.flatnonzero(np.diff(server, prepend=-2))
    return Servers(first, np.diff(np.append(first, server.size)))
