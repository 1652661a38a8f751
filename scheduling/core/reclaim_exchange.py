"""Servers exchanged after the greedy choice: returned ones for kept ones, singly and all those of one job together.

The greedy choice never looks back. Preempting a job that sits on many servers pays only when most of them go back, which no single
exchange shows: so all of a job's servers are brought in at once, or taken out at once, and the others make up the number. What
counts is jobs preempted, then GPUs freed on servers that stay. The search is deterministic and limited in work, not in time.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.arrays import BoolArray
from scheduling.core.compiling import kernel
from scheduling.core.reclaim_layout import Layout
from scheduling.core.snapshot import IntArray

JOBS, EXCESS, WORK = 0, 1, 2
"""Places in `Choice.total`."""


class Choice(NamedTuple):
    """A set of servers to return and what it does.

    ``inside``: servers chosen; ``cover``: of each job the chosen servers with its base workers (it is preempted if there is any);
    ``staying``: of each job the GPUs on servers that stay. ``total``: jobs preempted, their GPUs on servers that stay, and pairs
    looked at so far.
    """

    inside: BoolArray
    cover: IntArray
    staying: IntArray
    total: IntArray


@kernel
def _flip(layout, choice, server):  # type: ignore[no-untyped-def]
    """Choose the server, or give the choice up."""
    enters = not choice.inside[server]
    choice.inside[server] = enters
    for position in range(layout.server_offsets[server], layout.server_offsets[server + 1]):
        pair = layout.on_server[position]
        job = layout.job[pair]
        gpus = layout.gpus[pair]
        bound = layout.base[pair] > 0
        if enters:
            choice.staying[job] -= gpus
            if bound:
                choice.cover[job] += 1
            if bound and choice.cover[job] == 1:
                choice.total[JOBS] += 1
                choice.total[EXCESS] += choice.staying[job]
            elif choice.cover[job] > 0:
                choice.total[EXCESS] -= gpus
        else:
            if bound:
                choice.cover[job] -= 1
            if bound and choice.cover[job] == 0:
                choice.total[JOBS] -= 1
                choice.total[EXCESS] -= choice.staying[job]
            elif choice.cover[job] > 0:
                choice.total[EXCESS] += gpus
            choice.staying[job] += gpus


@kernel
def _effect(layout, choice, server):  # type: ignore[no-untyped-def]
    """What `_flip` would add to jobs and to excess GPUs, and the cost in fractions that guides longer moves.

    A job that is not preempted costs one over its servers, as in the greedy choice; one that is saves one over the chosen among them.
    """
    jobs = 0
    excess = 0
    guide = 0.0
    leaves = choice.inside[server]
    for position in range(layout.server_offsets[server], layout.server_offsets[server + 1]):
        pair = layout.on_server[position]
        job = layout.job[pair]
        gpus = layout.gpus[pair]
        cover = choice.cover[job]
        bound = layout.base[pair] > 0
        if leaves:
            if bound:
                guide -= 1.0 / cover
            if bound and cover == 1:
                jobs -= 1
                excess -= choice.staying[job]
            elif cover > 0:
                excess += gpus
        elif cover > 0:
            excess -= gpus
        elif bound:
            guide += 1.0 / layout.spread[job]
            jobs += 1
            excess += choice.staying[job] - gpus
    choice.total[WORK] += layout.server_offsets[server + 1] - layout.server_offsets[server]
    return jobs, excess, guide


@kernel
def _swap_once(layout, choice, servers):  # type: ignore[no-untyped-def]
    """Exchange one chosen server for another, the best such pair; False when no pair is an improvement."""
    jobs_before = choice.total[JOBS]
    excess_before = choice.total[EXCESS]
    best = (jobs_before, excess_before)
    best_out = -1
    best_in = -1
    for leaving in servers:
        if not choice.inside[leaving]:
            continue
        _flip(layout, choice, leaving)
        for entering in servers:
            if choice.inside[entering] or entering == leaving:
                continue
            jobs, excess, _ = _effect(layout, choice, entering)
            key = (choice.total[JOBS] + jobs, choice.total[EXCESS] + excess)
            if key < best:
                best = key
                best_out = leaving
                best_in = entering
        _flip(layout, choice, leaving)
    if best_out < 0:
        return False
    _flip(layout, choice, best_out)
    _flip(layout, choice, best_in)
    return True


@kernel
def _settle(layout, choice, servers, fixed, number):  # type: ignore[no-untyped-def]
    """Flip servers that are not ``fixed`` until ``number`` more (or fewer, if negative) are chosen; False when too few are left.

    The cheapest goes first: by fractions, the last by jobs; ties by excess GPUs.
    """
    leave = number < 0
    steps = abs(number)
    for step in range(steps):
        best = -1
        best_cost = 0.0
        best_excess = 0
        for server in servers:
            if fixed[server] or choice.inside[server] != leave:
                continue
            jobs, excess, guide = _effect(layout, choice, server)
            cost = np.float64(jobs) if step == steps - 1 else guide
            if best < 0 or cost < best_cost - 1e-9 or (cost <= best_cost + 1e-9 and excess < best_excess):
                best = server
                best_cost = cost
                best_excess = excess
        if best < 0:
            return False
        _flip(layout, choice, best)
    return True


@kernel
def _restore(choice, saved):  # type: ignore[no-untyped-def]
    """Bring back a saved choice; the work done stays counted."""
    choice.inside[:] = saved.inside
    choice.cover[:] = saved.cover
    choice.staying[:] = saved.staying
    choice.total[JOBS] = saved.total[JOBS]
    choice.total[EXCESS] = saved.total[EXCESS]


@kernel
def _move_job(layout, choice, servers, fixed, job, enters):  # type: ignore[no-untyped-def]
    """Choose all servers of a job, or none of them, and make up the number with the others."""
    moved = 0
    fixed[:] = False
    for pair in range(layout.job_offsets[job], layout.job_offsets[job + 1]):
        server = layout.server[pair]
        if layout.base[pair] == 0 or not layout.candidate[server]:
            continue
        fixed[server] = True
        if choice.inside[server] != enters:
            _flip(layout, choice, server)
            moved += 1
    return _settle(layout, choice, servers, fixed, -moved if enters else moved)


@kernel
def _search(layout, choice, saved, servers, jobs, most_work):  # type: ignore[no-untyped-def]
    """Swaps and moves of whole jobs until none is an improvement, or the work is done; False when it was cut off."""
    fixed = np.zeros(choice.inside.size, dtype=np.bool_)
    while choice.total[WORK] < most_work and _swap_once(layout, choice, servers):
        pass
    since = 0
    turn = 0
    while since < 2 * jobs.size:
        if choice.total[WORK] >= most_work:
            return False
        job = jobs[turn // 2]
        enters = turn % 2 == 0
        turn = (turn + 1) % (2 * jobs.size)
        since += 1
        if enters and choice.cover[job] == layout.spread[job] or not enters and choice.cover[job] == 0:
            continue
        _restore(saved, choice)
        settled = _move_job(layout, choice, servers, fixed, job, enters)
        while settled and choice.total[WORK] < most_work and _swap_once(layout, choice, servers):
            pass
        before = (saved.total[JOBS], saved.total[EXCESS])
        if settled and (choice.total[JOBS], choice.total[EXCESS]) < before:
            since = 0
        else:
            _restore(choice, saved)
    return True


def _empty(layout: Layout, already: IntArray) -> Choice:
    """Nothing chosen beyond the servers that go back anyway."""
    beside = layout.usable.copy()
    beside[already] = False
    staying = np.zeros(layout.spread.size, dtype=np.int64)
    np.add.at(staying, layout.job, np.where(beside[layout.server], layout.gpus, 0))
    return Choice(
        inside=np.zeros(beside.size, dtype=np.bool_),
        cover=np.zeros(staying.size, dtype=np.int64),
        staying=staying,
        total=np.zeros(3, dtype=np.int64),
    )


def _chosen(layout: Layout, already: IntArray, start: IntArray) -> Choice:
    choice = _empty(layout, already)
    for server in start.tolist():
        _flip(layout, choice, server)
    return choice


def exchanged(
    layout: Layout, allowed: BoolArray, already: IntArray, starts: list[IntArray], most_work: int
) -> tuple[IntArray, bool]:
    """The best of the ``starts`` after all exchanges that help, ascending; and whether the limit on work cut it short.

    ``allowed``: the servers to choose from, ``already``: those that go back before. Never worse than the best start, by
    (jobs preempted, GPUs freed on servers that stay).
    """
    choices = [_chosen(layout, already, start) for start in starts]
    choice = min(choices, key=lambda one: (int(one.total[JOBS]), int(one.total[EXCESS])))
    saved = _empty(layout, already)
    spanning = np.flatnonzero(layout.spread > 1)
    finished = _search(layout, choice, saved, np.flatnonzero(allowed), spanning, most_work)
    return np.flatnonzero(choice.inside), not finished
