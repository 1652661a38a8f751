"""Which server a worker goes to: best fit, with base and flexible workers on separate on-loan servers (Lyra
3.5.3).

Placement starts as if all flexible workers had left. Base workers are placed first and never move. Then
flexible workers return to their former servers where they can, and the others are placed anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from kernels.compiling import NO, YES, kernel
from scheduling.core.lyra.base_and_flexible import LENT, OWNED, Demands, listed_extra, speeds_on
from scheduling.core.lyra.fleet import WorkerMap
from scheduling.core.placement.buddy_blocks import NOWHERE
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import IntArray

OCCUPIED, IDLE, EMPTIED, BASE_HOLE, FORBIDDEN = 0, 1, 2, 3, 4
"""Preference classes of a server for a worker, best first: it hosts workers of the same sort; it was idle
before the tick; it had only flexible workers before; it hosts base workers, and the worker is flexible;
forbidden."""


class Grouping(NamedTuple):
    """How base and flexible workers share on-loan servers."""

    #: Whether base and flexible workers are placed on separate on-loan servers.
    apart: bool
    #: Whether flexible workers that find no server of their own may use GPUs beside base workers.
    holes: bool


class Room(NamedTuple):
    """The free GPUs during placement, one row for each server; changed in place."""

    #: Free GPUs.
    free: IntArray
    #: Owned or on loan (`OWNED`, `LENT`).
    kind: IntArray
    #: Base workers placed so far.
    base: IntArray
    #: Flexible workers placed so far.
    flexible: IntArray
    #: Workers on the server before this tick.
    before: IntArray
    #: Flexible workers on the server before this tick.
    flexible_before: IntArray


class Held(NamedTuple):
    """Workers before this tick, by kind of servers (row) and job (column)."""

    #: Base workers.
    base: IntArray
    #: Flexible workers.
    flexible: IntArray


class Kept(NamedTuple):
    """The flexible workers that keep their servers; changed in place."""

    #: The worker map before this tick.
    workers: WorkerMap
    #: Flexible workers that stay on each entry of that map.
    flexible: IntArray


@kernel
def tear_down(
    gpus: IntArray, on_loan: BoolArray, workers: WorkerMap, gpus_per_worker: IntArray
) -> tuple[Room, Held]:
    """Remove all flexible workers in thought: the room beside base workers, and the workers of each job."""
    servers = gpus.size
    jobs = gpus_per_worker.size
    kind = np.zeros(servers, dtype=np.int64)
    for server in range(servers):
        kind[server] = LENT if on_loan[server] else OWNED
    empty = np.zeros((4, servers), dtype=np.int64)
    room = Room(gpus.copy(), kind, empty[0], empty[1], empty[2], empty[3])
    held = Held(np.zeros((2, jobs), dtype=np.int64), np.zeros((2, jobs), dtype=np.int64))
    for job in range(jobs):
        for entry in range(workers.offsets[job], workers.offsets[job + 1]):
            server = workers.server[entry]
            room.free[server] -= workers.base[entry] * gpus_per_worker[job]
            room.base[server] += workers.base[entry]
            room.before[server] += workers.base[entry] + workers.flexible[entry]
            room.flexible_before[server] += workers.flexible[entry]
            held.base[kind[server], job] += workers.base[entry]
            held.flexible[kind[server], job] += workers.flexible[entry]
    return room, held


@kernel
def _welcome(base: int, present: int, before: int, apart: bool, holes: bool, flexible: bool) -> int:
    """The preference class of a server that holds ``base`` base and ``present`` flexible workers."""
    if base > 0:
        if flexible and apart:
            return BASE_HOLE if holes else FORBIDDEN
        return OCCUPIED
    if present > 0:
        return FORBIDDEN if apart and not flexible else OCCUPIED
    return IDLE if before == 0 else EMPTIED


@kernel
def best_server(room: Room, kind: int, gpus: int, flexible: bool, grouping: Grouping) -> int:
    """The best server with room for one worker, or NOWHERE.

    The best preference class wins, then the fewest free GPUs (best fit), then the lowest row.
    """
    free, kinds, base, present, before = room.free, room.kind, room.base, room.flexible, room.before
    apart, holes = grouping.apart and kind == LENT, grouping.holes
    best = NOWHERE
    best_welcome = FORBIDDEN
    for server in range(free.size):
        if kinds[server] != kind or free[server] < gpus:
            continue
        welcome = _welcome(base[server], present[server], before[server], apart, holes, flexible)
        if welcome < best_welcome or (
            welcome == best_welcome and welcome != FORBIDDEN and free[server] < free[best]
        ):
            best = server
            best_welcome = welcome
            if welcome == OCCUPIED and free[server] == gpus:
                break
    return best


@kernel
def usable_gpus(room: Room, kind: int, flexible: bool, grouping: Grouping) -> int:
    """Free GPUs on one kind of servers that base or flexible workers may use."""
    free, kinds, base, present, before = room.free, room.kind, room.base, room.flexible, room.before
    apart, holes = grouping.apart and kind == LENT, grouping.holes
    usable = 0
    for server in range(free.size):
        if kinds[server] == kind and free[server] > 0:
            if _welcome(base[server], present[server], before[server], apart, holes, flexible) != FORBIDDEN:
                usable += free[server]
    return usable


@kernel
def put(room: Room, server: int, number: int, gpus: int, flexible: bool) -> None:
    """Enter ``number`` workers on a server; a negative number removes workers."""
    room.free[server] -= number * gpus
    if flexible:
        room.flexible[server] += number
    else:
        room.base[server] += number


@kernel
def place_workers(
    room: Room, kind: int, gpus: int, count: int, flexible: bool, grouping: Grouping
) -> tuple[list[tuple[int, int]], int]:
    """Place up to ``count`` workers of one job by best fit. Returns pairs (server, number) and how many found
    no room.

    A server that is the best fit remains so after it takes a worker, so it is filled at once.
    """
    placed = [(0, 0) for _ in range(0)]
    while count > 0:
        server = best_server(room, kind, gpus, flexible, grouping)
        if server == NOWHERE:
            break
        number = min(count, room.free[server] // gpus)
        put(room, server, number, gpus, flexible)
        placed.append((server, number))
        count -= number
    return placed, count


@kernel
def place_gang(room: Room, kind: int, gpus: int, count: int, grouping: Grouping) -> list[tuple[int, int]]:
    """Place all base workers of a job or none; an empty list means none."""
    placed, left = place_workers(room, kind, gpus, count, NO, grouping)
    if left > 0:
        while len(placed) > 0:
            server, number = placed.pop()
            put(room, server, -number, gpus, NO)
    return placed


@kernel
def as_rows(placed: list[tuple[int, int, int, int]]) -> IntArray:
    """Placements (job, server, base workers, flexible workers) as rows of one array."""
    rows = np.empty((len(placed), 4), dtype=np.int64)
    for position in range(len(placed)):
        rows[position, 0], rows[position, 1], rows[position, 2], rows[position, 3] = placed[position]
    return rows


@kernel
def place_bases(
    room: Room,
    jobs: IntArray,
    kinds: IntArray,
    numbers: IntArray,
    gpus_per_worker: IntArray,
    grouping: Grouping,
) -> tuple[IntArray, BoolArray]:
    """Place the base workers of jobs in the given order, each job on its kind of servers, all or nothing.

    Returns the placements and, for each job, whether it fit.
    """
    placed = [(0, 0, 0, 0) for _ in range(0)]
    found = np.zeros(jobs.size, dtype=np.bool_)
    for position in range(jobs.size):
        job = jobs[position]
        gang = place_gang(room, kinds[position], gpus_per_worker[job], numbers[position], grouping)
        found[position] = len(gang) > 0
        for server, number in gang:
            placed.append((job, server, number, 0))
    return as_rows(placed), found


@kernel
def _next_to_return(room: Room, kept: Kept, job: int, kind: int, gpus: int, grouping: Grouping) -> int:
    """The next former server on which a flexible worker of the job can be placed again, or NOWHERE.

    Servers with the most flexible workers come first, so that servers with few empty; then the
    lowest row.
    """
    workers = kept.workers
    apart = grouping.apart and kind == LENT
    best = NOWHERE
    for entry in range(workers.offsets[job], workers.offsets[job + 1]):
        server = workers.server[entry]
        if (
            workers.flexible[entry] == kept.flexible[entry]
            or room.kind[server] != kind
            or room.free[server] < gpus
        ):
            continue
        if apart and not grouping.holes and room.base[server] > 0:
            continue
        if best != NOWHERE:
            other = workers.server[best]
            more = room.flexible_before[server] - room.flexible_before[other]
            if more < 0 or (more == 0 and server > other):
                continue
        best = entry
    return best


@kernel
def return_flexible(
    room: Room,
    kept: Kept,
    gpus_per_worker: IntArray,
    jobs: IntArray,
    kind: int,
    wanted: IntArray,
    grouping: Grouping,
) -> IntArray:
    """Place flexible workers on their former servers again, up to ``wanted`` for each job on this kind.
    Returns the number placed for each job."""
    workers = kept.workers
    returned = np.zeros(wanted.size, dtype=np.int64)
    for job in jobs:
        gpus = gpus_per_worker[job]
        while returned[job] < wanted[job]:
            entry = _next_to_return(room, kept, job, kind, gpus, grouping)
            if entry == NOWHERE:
                break
            server = workers.server[entry]
            number = min(
                workers.flexible[entry] - kept.flexible[entry],
                room.free[server] // gpus,
                wanted[job] - returned[job],
            )
            put(room, server, number, gpus, YES)
            kept.flexible[entry] += number
            returned[job] += number
    return returned


@kernel
def give_up_returned(room: Room, kept: Kept, job: int, kind: int, gpus: int, surplus: int) -> None:
    """Remove ``surplus`` returned workers of a job, from the servers with the fewest flexible workers
    first."""
    workers = kept.workers
    while surplus > 0:
        worst = NOWHERE
        for entry in range(workers.offsets[job], workers.offsets[job + 1]):
            server = workers.server[entry]
            if kept.flexible[entry] == 0 or room.kind[server] != kind:
                continue
            if worst != NOWHERE:
                more = room.flexible_before[server] - room.flexible_before[workers.server[worst]]
                if more > 0 or (more == 0 and server < workers.server[worst]):
                    continue
            worst = entry
        if worst == NOWHERE:
            return
        number = min(kept.flexible[worst], surplus)
        kept.flexible[worst] -= number
        surplus -= number
        put(room, workers.server[worst], -number, gpus, YES)


@kernel
def place_flexible(
    room: Room,
    kept: Kept,
    demands: Demands,
    jobs: IntArray,
    kind: int,
    wanted: IntArray,
    got: IntArray,
    beyond: IntArray,
    grouping: Grouping,
) -> tuple[IntArray, bool]:
    """Place by best fit the flexible workers that could not return, in the given order of jobs.

    ``got`` is the number of flexible workers that each job has, and is changed. ``beyond`` is the number of
    workers beyond which workers count as extra. A job ends with a listed number of workers; surplus workers
    are removed. Returns the placements and whether removals freed GPUs, so that earlier jobs may try again.
    """
    speeds = speeds_on(demands, kind)
    placed = [(0, 0, 0, 0) for _ in range(0)]
    freed = False
    for job in jobs:
        missing = wanted[job] - got[job]
        if missing == 0:
            continue
        gpus = demands.gpus_per_worker[job]
        found, left = place_workers(room, kind, gpus, missing, YES, grouping)
        had = got[job]
        got[job] = listed_extra(speeds, job, beyond[job], had + missing - left)
        surplus = had + missing - left - got[job]
        while surplus > 0 and len(found) > 0:
            server, number = found.pop()
            taken = min(number, surplus)
            put(room, server, -taken, gpus, YES)
            surplus -= taken
            if taken < number:
                found.append((server, number - taken))
        if surplus > 0:
            give_up_returned(room, kept, job, kind, gpus, surplus)
            freed = True
        for server, number in found:
            placed.append((job, server, 0, number))
    return as_rows(placed), freed
