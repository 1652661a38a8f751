"""The order in which servers of the flexible group are returned: the least time lost first."""

from __future__ import annotations

import numpy as np

from kernels.compiling import kernel
from scheduling.core.lyra.fleet import Speeds, rate_of
from scheduling.core.lyra.reclaiming.question import Layout, workers_of
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray


@kernel
def _seconds_lost(remaining: FloatArray, speeds: Speeds, job: int, workers: int, lost: int) -> float:
    """Seconds by which the job ends later without ``lost`` of its workers; 0 for a job that makes no progress
    now."""
    rate = rate_of(speeds, job, workers)
    if rate <= 0.0 or remaining[job] <= 0.0:
        return 0.0
    slower = rate_of(speeds, job, workers - lost)
    if slower <= 0.0:
        return np.inf
    return float(remaining[job] / slower - remaining[job] / rate)


@kernel
def _server_loss(
    layout: Layout, remaining: FloatArray, speeds: Speeds, workers: IntArray, server: int
) -> float:
    """Seconds that all jobs on the server lose in sum."""
    total = 0.0
    for position in range(layout.server_offsets[server], layout.server_offsets[server + 1]):
        pair = layout.on_server[position]
        job = layout.job[pair]
        total += _seconds_lost(remaining, speeds, job, workers[job], layout.flexible[pair])
    return total


@kernel
def _release(
    layout: Layout,
    group: BoolArray,
    on_server: IntArray,
    remaining: FloatArray,
    speeds: Speeds,
    workers: IntArray,
    wanted: int,
) -> tuple[IntArray, FloatArray]:
    """Release ``wanted`` servers of the group; reduces ``workers``, the workers of each job."""
    loss = np.full(group.size, np.inf)
    for server in range(group.size):
        if group[server]:
            loss[server] = _server_loss(layout, remaining, speeds, workers, server)
    released = np.empty(wanted, dtype=np.int64)
    seconds = np.empty(wanted)
    for step in range(wanted):
        best = -1
        for server in range(group.size):
            if group[server] and (
                best < 0
                or loss[server] < loss[best]
                or (loss[server] == loss[best] and on_server[server] < on_server[best])
            ):
                best = server
        released[step] = best
        seconds[step] = loss[best]
        group[best] = False
        for position in range(layout.server_offsets[best], layout.server_offsets[best + 1]):
            pair = layout.on_server[position]
            job = layout.job[pair]
            workers[job] -= layout.flexible[pair]
            for other in range(layout.job_offsets[job], layout.job_offsets[job + 1]):
                elsewhere = layout.server[other]
                if group[elsewhere]:
                    loss[elsewhere] = _server_loss(layout, remaining, speeds, workers, elsewhere)
    return released, seconds


def release_flexible(
    layout: Layout,
    group: BoolArray,
    on_server: IntArray,
    remaining_iterations: FloatArray,
    lent: Speeds,
    wanted: int,
) -> tuple[IntArray, FloatArray]:
    """Choose up to ``wanted`` servers of the flexible ``group`` in ascending order of (seconds lost by jobs,
    workers, row).

    Losses are computed anew after each server. ``on_server``: workers on each server. Returns the servers and
    the seconds lost by each.
    """
    wanted = min(wanted, int(group.sum()))
    released, seconds = _release(
        layout, group.copy(), on_server, remaining_iterations, lent, workers_of(layout), wanted
    )
    return released, seconds
