"""Phase 1: which pending jobs get their base demand (Lyra section 3.5.2).

Jobs are admitted shortest first; a job whose base demand exceeds the free GPUs is skipped. Admission first
compares numbers of GPUs. Workers are placed afterwards, the largest first. If the free GPUs are too scattered
for an admitted job, the job does not start, and its GPUs stay free for phase 2.
"""

from __future__ import annotations

from enum import IntEnum, StrEnum
from typing import NamedTuple

import numpy as np

from kernels.compiling import kernel
from scheduling.core.lyra.base_and_flexible import (
    LENT,
    NO_KIND,
    OWNED,
    Demands,
    base_on,
    base_table,
)
from scheduling.core.lyra.fleet import Fleet
from scheduling.core.lyra.worker_placement import (
    Grouping,
    Room,
    as_rows,
    place_bases,
    place_gang,
    usable_gpus,
)
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import FloatArray, IntArray


class BaseOrder(StrEnum):
    """The order in which pending jobs get their base demand, and whether a job that does not fit blocks the
    jobs behind it."""

    SHORTEST_AT_BASE = "shortest_at_base"
    """Least running time at base demand first; no job is blocked."""

    SHORTEST_AT_MOST = "shortest_at_most"
    """Least running time with the job's most workers first; no job is blocked."""

    FIRST_COME = "first_come"
    """Submission order; a job that does not fit blocks all jobs behind it."""

    BACKFILLING = "backfilling"
    """Submission order; no job is blocked."""


class Skip(IntEnum):
    """Why a pending job does not start now."""

    NO_ROOM = 1
    """Its base demand exceeds the GPUs left on every kind of servers that it may use."""

    FRAGMENTED = 2
    """Enough GPUs are left, but too scattered for its base workers."""

    UNSCHEDULABLE = 3
    """The job would not fit even on the empty servers of the present fleet."""

    HELD_UP = 4
    """A job before it in a strict queue does not fit and blocks it."""


class BaseDemandsMet(NamedTuple):
    """The outcome of phase 1."""

    #: Rows of the jobs that start.
    started: IntArray
    #: Placements as rows (job, server, base workers, 0).
    placed: IntArray
    #: Rows of the pending jobs that do not start.
    skipped: IntArray
    #: A `Skip` for each skipped job.
    reason: IntArray


UNDECIDED, STARTED, HOPELESS = 0, 1, 2


def base_order(demands: Demands, pending: IntArray, order: BaseOrder, ageing_weight: float) -> IntArray:
    """Sort pending jobs into the order in which they are admitted.

    ``ageing_weight``: seconds of running time that one second of waiting makes up for.
    """
    if order in (BaseOrder.FIRST_COME, BaseOrder.BACKFILLING) or pending.size < 2:
        return pending
    seconds = _running_seconds(demands, pending, order is BaseOrder.SHORTEST_AT_BASE)
    keys = seconds - ageing_weight * demands.waiting_seconds[pending]
    ordered: IntArray = pending[np.argsort(keys, kind="stable")]
    return ordered


@kernel
def _running_seconds(demands: Demands, jobs: IntArray, at_base: bool) -> FloatArray:
    """Seconds each job would run at its base demand, or with its most workers.

    Rates are those on owned servers, or those on on-loan servers for a job that runs only there.
    """
    seconds = np.empty(jobs.size)
    for position in range(jobs.size):
        job = jobs[position]
        speeds = demands.owned if base_on(demands, job, OWNED) > 0 else demands.lent
        entry = speeds.offsets[job] if at_base else speeds.offsets[job + 1] - 1
        able = speeds.offsets[job + 1] > speeds.offsets[job] and speeds.rate[entry] > 0.0
        seconds[position] = demands.remaining[job] / speeds.rate[entry] if able else np.inf
    return seconds


@kernel
def _count_in(
    gpus: IntArray, prefers: IntArray, state: IntArray, barred: BoolArray, left: IntArray
) -> IntArray:
    """Assign each undecided job, in order, to a kind of servers with enough GPUs left for its base demand.

    A job gets `NO_KIND` where neither kind has enough. ``gpus`` and ``prefers`` are those of `base_table`.
    ``left``, GPUs by kind, is reduced. ``barred[kind, position]`` marks jobs that were already found not to
    fit there.
    """
    kinds = np.full(state.size, NO_KIND)
    for position in range(state.size):
        if state[position] != UNDECIDED:
            continue
        for kind in (prefers[position], 1 - prefers[position]):
            demand = gpus[kind, position]
            if 0 < demand <= left[kind] and not barred[kind, position]:
                left[kind] -= demand
                kinds[position] = kind
                break
    return kinds


def _placing_order(demands: Demands, jobs: IntArray, demanded: IntArray) -> IntArray:
    """Larger workers first, then larger demands, then earlier submissions."""
    order: IntArray = np.lexsort((jobs, -demanded, -demands.gpus_per_worker[jobs]))
    return order


class Pending(NamedTuple):
    """Jobs that wait to start, one entry for each job."""

    #: Rows of the jobs.
    jobs: IntArray
    #: Base demand in GPUs, shaped (kind of servers, job); 0 where the job cannot run.
    gpus: IntArray
    #: The kind of servers that each job prefers.
    prefers: IntArray
    #: Whether the job would fit if no other job were running.
    alone: BoolArray


def admit_bases(
    fleet: Fleet,
    room: Room,
    demands: Demands,
    jobs: IntArray,
    grouping: Grouping,
    *,
    naive: bool,
    reconsider: bool,
) -> BaseDemandsMet:
    """Admit and place the base demands of ``jobs`` in the given order; skip jobs that do not fit.

    A job that would not fit on empty servers is not admitted. With ``reconsider``, the GPUs of jobs that
    could not be placed are offered to the other jobs at once, and the unplaced jobs are tried on the other
    kind of servers. Without it both wait for the next tick.
    """
    alone = fits_alone(fleet.gpus, fleet.on_loan, demands, jobs)
    state = np.where(alone, UNDECIDED, HOPELESS)
    barred = np.zeros((2, jobs.size), dtype=np.bool_)
    placements = []
    gpus, prefers = base_table(demands, jobs, naive)
    left = np.array([usable_gpus(room, kind, False, grouping) for kind in (OWNED, LENT)])
    while True:
        kinds = _count_in(gpus, prefers, state, barred, left)
        taken = np.flatnonzero(kinds != NO_KIND)
        if taken.size == 0:
            break
        demanded = gpus[kinds[taken], taken]
        order = _placing_order(demands, jobs[taken], demanded)
        taken, demanded = taken[order], demanded[order]
        rows = jobs[taken]
        numbers = demanded // demands.gpus_per_worker[rows]
        placed, found = place_bases(room, rows, kinds[taken], numbers, demands.gpus_per_worker, grouping)
        placements.append(placed)
        state[taken[found]] = STARTED
        unplaced = taken[~found]
        barred[kinds[unplaced], unplaced] = True
        if not reconsider or unplaced.size == 0:
            break
        np.add.at(left, kinds[unplaced], demanded[~found])
    skipped = np.flatnonzero(state != STARTED)
    reason = np.where(barred.any(axis=0), int(Skip.FRAGMENTED), int(Skip.NO_ROOM))
    reason[~alone] = Skip.UNSCHEDULABLE
    placed = np.concatenate(placements) if placements else np.zeros((0, 4), dtype=np.int64)
    return BaseDemandsMet(np.sort(jobs[state == STARTED]), placed, jobs[skipped], reason[skipped])


def admit_strictly(
    fleet: Fleet, room: Room, demands: Demands, jobs: IntArray, grouping: Grouping, *, naive: bool
) -> BaseDemandsMet:
    """Place the base demands of ``jobs`` one by one in the given order; stop at the first job that does not
    fit.

    A job that would not fit on empty servers does not block the others.
    """
    alone = fits_alone(fleet.gpus, fleet.on_loan, demands, jobs)
    gpus, prefers = base_table(demands, jobs, naive)
    placed, started, head = _place_in_turn(
        room, Pending(jobs, gpus, prefers, alone), demands.gpus_per_worker, grouping
    )
    waiting = np.flatnonzero(~started)
    reason = np.where(alone[waiting], int(Skip.HELD_UP), int(Skip.UNSCHEDULABLE))
    if head < jobs.size:
        left = [usable_gpus(room, kind, False, grouping) for kind in (OWNED, LENT)]
        enough = any(0 < gpus[kind, head] <= left[kind] for kind in (OWNED, LENT))
        reason[np.searchsorted(waiting, head)] = Skip.FRAGMENTED if enough else Skip.NO_ROOM
    return BaseDemandsMet(np.sort(jobs[started]), placed, jobs[waiting], reason)


@kernel
def _place_in_turn(
    room: Room, pending: Pending, gpus_per_worker: IntArray, grouping: Grouping
) -> tuple[IntArray, BoolArray, int]:
    """Place pending jobs in order. Returns the placements, which jobs started, and the position of the job
    that blocks the queue (the number of jobs if none does)."""
    jobs, gpus, prefers, alone = pending
    placed = [(0, 0, 0, 0) for _ in range(0)]
    started = np.zeros(jobs.size, dtype=np.bool_)
    for position in range(jobs.size):
        job = jobs[position]
        if not alone[position]:
            continue
        for kind in (prefers[position], 1 - prefers[position]):
            if gpus[kind, position] == 0 or started[position]:
                continue
            number = gpus[kind, position] // gpus_per_worker[job]
            for server, count in place_gang(room, kind, gpus_per_worker[job], number, grouping):
                started[position] = True
                placed.append((job, server, count, 0))
        if not started[position]:
            return as_rows(placed), started, position
    return as_rows(placed), started, jobs.size


@kernel
def fits_alone(gpus: IntArray, on_loan: BoolArray, demands: Demands, jobs: IntArray) -> BoolArray:
    """Whether the base demand of each job fits on empty servers: on one kind, or on both where the job may
    mix."""
    most = 0
    for number in gpus:
        most = max(most, number)
    places = np.zeros((2, most + 1), dtype=np.int64)
    for server in range(gpus.size):
        kind = LENT if on_loan[server] else OWNED
        for size in range(1, gpus[server] + 1):
            places[kind, size] += gpus[server] // size
    fits = np.zeros(jobs.size, dtype=np.bool_)
    for position in range(jobs.size):
        job = jobs[position]
        size = demands.gpus_per_worker[job]
        if size > most:
            continue
        filled = 0.0
        for kind in (OWNED, LENT):
            number = base_on(demands, job, kind)
            if number > 0:
                share = places[kind, size] / number
                filled = filled + share if demands.mixes[job] else max(filled, share)
        fits[position] = filled >= 1.0
    return fits
