"""Lyra's greedy choice among servers with base workers: the lowest preemption cost first (Lyra section 3.4).

A preempted job leaves all its servers, so each pick lowers the cost of others. Ties go to the server whose
jobs free the fewest GPUs on other servers. GPUs on servers that lose their last base worker do not count,
because those servers can be returned next.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.compiling import kernel
from scheduling.core.lyra.reclaiming.question import Layout, costs
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray

COST_TOLERANCE = 1e-9
"""Costs closer than this are equal: they are sums of fractions, formed in different orders."""


class Picks(NamedTuple):
    """Chosen servers in order, each with the key of its choice."""

    #: Rows of the servers.
    server: IntArray
    #: Preemption cost.
    cost: FloatArray
    #: GPUs freed on other servers, less those of credited servers.
    excess_gpus: IntArray
    #: Number of servers that lose their last base worker.
    credited_servers: IntArray


class Standing(NamedTuple):
    """The state of the greedy choice. The last three fields are scratch arrays, zero between uses."""

    #: Marks jobs that are preempted.
    gone: BoolArray
    #: Marks servers that are returned.
    taken: BoolArray
    #: Jobs with base workers that remain on each server.
    hosted: IntArray
    #: Preemption cost of each server now.
    cost: FloatArray
    #: Scratch: GPUs freed on each server.
    freed: IntArray
    #: Scratch: jobs whose base workers would leave each server.
    released: IntArray
    #: Scratch: rows of the servers with freed GPUs.
    touched: IntArray


@kernel
def _free_elsewhere(layout: Layout, standing: Standing, server: int) -> int:
    """Record what preempting the server's jobs frees on servers that stay. Returns the number of these
    servers."""
    touched = 0
    for position in range(layout.server_offsets[server], layout.server_offsets[server + 1]):
        pair = layout.on_server[position]
        job = layout.job[pair]
        if layout.base[pair] == 0 or standing.gone[job]:
            continue
        for other in range(layout.job_offsets[job], layout.job_offsets[job + 1]):
            elsewhere = layout.server[other]
            if elsewhere == server or standing.taken[elsewhere] or not layout.usable[elsewhere]:
                continue
            if standing.freed[elsewhere] == 0 and layout.gpus[other] > 0:
                standing.touched[touched] = elsewhere
                touched += 1
            standing.freed[elsewhere] += layout.gpus[other]
            if layout.base[other] > 0:
                standing.released[elsewhere] += 1
    return touched


@kernel
def _excess(
    layout: Layout, standing: Standing, allowed: BoolArray, server: int, credits: int
) -> tuple[int, int]:
    """(excess GPUs, credited servers) of one server.

    Excess GPUs are those freed on other servers, less those on servers that lose their last base worker. At
    most ``credits`` of these servers are credited, those with the most freed GPUs first.
    """
    touched = _free_elsewhere(layout, standing, server)
    total = 0
    emptied = 0
    gains = np.empty(touched, dtype=np.int64)
    for index in range(touched):
        elsewhere = standing.touched[index]
        total += standing.freed[elsewhere]
        if allowed[elsewhere] and standing.released[elsewhere] == standing.hosted[elsewhere]:
            gains[emptied] = standing.freed[elsewhere]
            emptied += 1
        standing.freed[elsewhere] = 0
        standing.released[elsewhere] = 0
    credited = min(credits, emptied)
    if credited > 0:
        ascending = np.sort(gains[:emptied])
        total -= ascending[emptied - credited :].sum()
    return total, credited


@kernel
def _take(layout: Layout, standing: Standing, share: FloatArray, server: int) -> None:
    """Return the server: preempt its jobs everywhere, which lowers the cost of other servers."""
    standing.taken[server] = True
    for position in range(layout.server_offsets[server], layout.server_offsets[server + 1]):
        pair = layout.on_server[position]
        job = layout.job[pair]
        if layout.base[pair] == 0 or standing.gone[job]:
            continue
        standing.gone[job] = True
        for other in range(layout.job_offsets[job], layout.job_offsets[job + 1]):
            elsewhere = layout.server[other]
            if layout.base[other] > 0 and layout.candidate[elsewhere]:
                standing.hosted[elsewhere] -= 1
                standing.cost[elsewhere] -= share[other]


@kernel
def _key(standing: Standing, server: int, by_count: bool) -> float:
    """The server's preemption cost, or its number of jobs; 0 once it hosts no job."""
    if by_count or standing.hosted[server] == 0:
        return float(standing.hosted[server])
    return float(standing.cost[server])


@kernel
def _pick_all(
    layout: Layout,
    standing: Standing,
    share: FloatArray,
    allowed: BoolArray,
    wanted: int,
    count_always: bool,
    count_last: bool,
) -> tuple[IntArray, FloatArray, IntArray, IntArray]:
    """Pick ``wanted`` servers one by one; see `greedy_picks`."""
    chosen = np.empty(wanted, dtype=np.int64)
    cost = np.empty(wanted)
    excess_gpus = np.empty(wanted, dtype=np.int64)
    credited_servers = np.empty(wanted, dtype=np.int64)
    for step in range(wanted):
        remaining = wanted - step
        by_count = count_always or (count_last and remaining == 1)
        least = np.inf
        for server in range(allowed.size):
            if allowed[server] and not standing.taken[server]:
                least = min(least, _key(standing, server, by_count))
        best = -1
        for server in range(allowed.size):
            if not allowed[server] or standing.taken[server]:
                continue
            key = _key(standing, server, by_count)
            if key > least + COST_TOLERANCE:
                continue
            excess, credited = _excess(layout, standing, allowed, server, remaining - 1)
            if (
                best < 0
                or excess < excess_gpus[step]
                or (excess == excess_gpus[step] and credited > credited_servers[step])
            ):
                best = server
                cost[step] = key
                excess_gpus[step] = excess
                credited_servers[step] = credited
        chosen[step] = best
        _take(layout, standing, share, best)
    return chosen, cost, excess_gpus, credited_servers


def greedy_picks(
    layout: Layout,
    share: FloatArray,
    allowed: BoolArray,
    already: IntArray,
    wanted: int,
    *,
    count_always: bool = False,
    count_last: bool = False,
) -> Picks:
    """Pick ``wanted`` of the ``allowed`` servers, each time the smallest (preemption cost, excess GPUs,
    -credited servers, row).

    ``share`` is the part of each pair of job and server in the server's cost. ``already`` marks servers that
    are returned before. ``count_always``: the cost is the number of jobs (for a reclaim of one server).
    ``count_last``: the same for the last pick, where it cannot preempt more jobs.
    """
    taken = np.zeros(layout.usable.size, dtype=np.bool_)
    taken[already] = True
    standing = Standing(
        gone=np.zeros(layout.spread.size, dtype=np.bool_),
        taken=taken,
        hosted=layout.hosted.copy(),
        cost=costs(layout, share),
        freed=np.zeros(taken.size, dtype=np.int64),
        released=np.zeros(taken.size, dtype=np.int64),
        touched=np.zeros(taken.size, dtype=np.int64),
    )
    return Picks(*_pick_all(layout, standing, share, allowed, wanted, count_always, count_last))
