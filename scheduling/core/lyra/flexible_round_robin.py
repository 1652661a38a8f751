"""Gandiva's growth in Lyra's evaluation: jobs grow in turn while no job waits (Lyra section 3.7.1).

A tick does not divide flexible workers anew. Jobs keep them until a pending job needs their GPUs; then the
job that grew last shrinks first, step by step. While no job waits, jobs grow in turn by one step, on servers
where they already run.
"""

from __future__ import annotations

import numpy as np

from kernels.compiling import YES, kernel
from scheduling.core.lyra.base_and_flexible import (
    Demands,
    base_table,
    listed_extra,
    speeds_on,
)
from scheduling.core.lyra.base_demands import BaseDemandsMet, Pending, Skip, fits_alone
from scheduling.core.lyra.fleet import Fleet, WorkerMap
from scheduling.core.lyra.worker_changes import edited_map
from scheduling.core.lyra.worker_placement import (
    Grouping,
    Held,
    Kept,
    Room,
    as_rows,
    give_up_returned,
    place_gang,
    put,
)
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import IntArray


def divide_in_turn(
    fleet: Fleet,
    room: Room,
    held: Held,
    workers: WorkerMap,
    demands: Demands,
    jobs: IntArray,
    grouping: Grouping,
    *,
    strict: bool,
    naive: bool,
) -> tuple[BaseDemandsMet, WorkerMap]:
    """Start pending ``jobs`` in the given order, shrink grown jobs where needed, and let jobs grow if none
    waits.

    With ``strict`` the first job that does not fit blocks the jobs behind it. No job mixes kinds. Returns the
    outcome of phase 1 and the new worker map.
    """
    kept = Kept(workers, workers.flexible.copy())
    _seat_flexible(room, workers, demands.gpus_per_worker)
    latest_first = np.lexsort((-np.arange(demands.grown_at.size), -demands.grown_at))
    alone = fits_alone(fleet.gpus, fleet.on_loan, demands, jobs)
    gpus, prefers = base_table(demands, jobs, naive)
    placed, started, enough = _start_in_turn(
        room, held, kept, demands, Pending(jobs, gpus, prefers, alone), latest_first, grouping, strict
    )
    waiting = np.flatnonzero(~started)
    reason = np.where(enough[waiting], int(Skip.FRAGMENTED), int(Skip.NO_ROOM))
    if strict:
        reason[np.isin(waiting, waiting[alone[waiting]][1:])] = Skip.HELD_UP
    reason[~alone[waiting]] = Skip.UNSCHEDULABLE
    admission = BaseDemandsMet(np.sort(jobs[started]), placed, jobs[waiting], reason)
    after = edited_map(workers, kept.flexible, placed)
    if np.all(reason == Skip.UNSCHEDULABLE):
        grown = after.flexible.copy()
        _grow_in_turn(room, after, demands, grown)
        after = edited_map(after, grown, np.zeros((0, 4), dtype=np.int64))
    return admission, after


@kernel
def _seat_flexible(room: Room, workers: WorkerMap, gpus_per_worker: IntArray) -> None:
    """Enter all flexible workers into the room again."""
    for job in range(gpus_per_worker.size):
        for entry in range(workers.offsets[job], workers.offsets[job + 1]):
            put(room, workers.server[entry], workers.flexible[entry], gpus_per_worker[job], YES)


@kernel
def _start_in_turn(
    room: Room,
    held: Held,
    kept: Kept,
    demands: Demands,
    pending: Pending,
    latest_first: IntArray,
    grouping: Grouping,
    strict: bool,
) -> tuple[IntArray, BoolArray, BoolArray]:
    """Start jobs in order. Returns the placements, which jobs started, and for which jobs the free GPUs were
    too scattered."""
    jobs, demanded, prefers, alone = pending
    placed = [(0, 0, 0, 0) for _ in range(0)]
    started = np.zeros(jobs.size, dtype=np.bool_)
    enough = np.zeros(jobs.size, dtype=np.bool_)
    for position in range(jobs.size):
        job = jobs[position]
        if not alone[position]:
            continue
        gpus = demands.gpus_per_worker[job]
        for kind in (prefers[position], 1 - prefers[position]):
            number = demanded[kind, position] // gpus
            if number == 0 or started[position]:
                continue
            gang = place_gang(room, kind, gpus, number, grouping)
            if len(gang) == 0 and number * gpus <= _reclaimable(room, kept, demands, kind):
                enough[position] = True
                gang = _start_by_shrinking(
                    room, held, kept, demands, kind, gpus, number, latest_first, grouping
                )
            for server, count in gang:
                placed.append((job, server, count, 0))
                started[position] = True
        if strict and not started[position]:
            break
    return as_rows(placed), started, enough


@kernel
def _reclaimable(room: Room, kept: Kept, demands: Demands, kind: int) -> int:
    """GPUs on one kind of servers that are free or used by flexible workers."""
    workers = kept.workers
    gpus = 0
    for server in range(room.free.size):
        if room.kind[server] == kind:
            gpus += room.free[server]
    for job in range(demands.gpus_per_worker.size):
        for entry in range(workers.offsets[job], workers.offsets[job + 1]):
            if room.kind[workers.server[entry]] == kind:
                gpus += kept.flexible[entry] * demands.gpus_per_worker[job]
    return gpus


@kernel
def _start_by_shrinking(
    room: Room,
    held: Held,
    kept: Kept,
    demands: Demands,
    kind: int,
    gpus: int,
    number: int,
    latest_first: IntArray,
    grouping: Grouping,
) -> list[tuple[int, int]]:
    """Shrink grown jobs step by step, the latest first, until the base workers fit.

    Where they never fit, every job keeps its workers.
    """
    workers = kept.workers
    free, flexible, kept_before = room.free.copy(), room.flexible.copy(), kept.flexible.copy()
    speeds = speeds_on(demands, kind)
    for other in latest_first:
        extra = 0
        for entry in range(workers.offsets[other], workers.offsets[other + 1]):
            if room.kind[workers.server[entry]] == kind:
                extra += kept.flexible[entry]
        while extra > 0:
            fewer = listed_extra(speeds, other, held.base[kind, other], extra - 1)
            give_up_returned(room, kept, other, kind, demands.gpus_per_worker[other], extra - fewer)
            extra = fewer
            gang = place_gang(room, kind, gpus, number, grouping)
            if len(gang) > 0:
                return gang
    room.free[:] = free
    room.flexible[:] = flexible
    kept.flexible[:] = kept_before
    return [(0, 0) for _ in range(0)]


@kernel
def _grow_in_turn(room: Room, workers: WorkerMap, demands: Demands, grown: IntArray) -> None:
    """Let jobs grow by one step in turn until none can. Changes ``grown``, the flexible workers of each
    entry."""
    jobs = demands.gpus_per_worker.size
    finished = np.zeros(jobs, dtype=np.bool_)
    anybody = True
    while anybody:
        anybody = False
        for job in range(jobs):
            if not finished[job]:
                finished[job] = not _grow_by_a_step(room, workers, demands, job, grown)
                anybody = anybody or not finished[job]


@kernel
def _grow_by_a_step(room: Room, workers: WorkerMap, demands: Demands, job: int, grown: IntArray) -> bool:
    """Grow one job to its next listed number of workers, on servers where it runs. Returns whether it fit."""
    first, last = workers.offsets[job], workers.offsets[job + 1]
    if first == last or demands.mixes[job]:
        return False
    kind = room.kind[workers.server[first]]
    gpus = demands.gpus_per_worker[job]
    now = 0
    places = 0
    for entry in range(first, last):
        now += workers.base[entry] + grown[entry]
        places += room.free[workers.server[entry]] // gpus
    speeds = speeds_on(demands, kind)
    step = 0
    for entry in range(speeds.offsets[job], speeds.offsets[job + 1]):
        if speeds.workers[entry] > now:
            step = speeds.workers[entry] - now
            break
    if step == 0 or step > places:
        return False
    while step > 0:
        fullest = first
        fullest_free = -1
        for entry in range(first, last):
            free = room.free[workers.server[entry]]
            if free >= gpus and (fullest_free < 0 or free < fullest_free):
                fullest, fullest_free = entry, free
        number = min(step, fullest_free // gpus)
        put(room, workers.server[fullest], number, gpus, YES)
        grown[fullest] += number
        step -= number
    return True
