"""Which server a worker goes to: best fit, base and flexible workers apart on servers on loan (Lyra 3.5.3;
spec 2.7).

The fleet is looked at as though all flexible workers were gone. Base workers are placed first and stay for
good; then flexible workers return to where they were, and only what is left of them is placed anew.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from scheduling.core.kernels import NO, YES, kernel
from scheduling.core.lyra.base_and_flexible import LENT, OWNED, Demands, listed_extra, speeds_on
from scheduling.core.lyra.fleet import WorkerMap
from scheduling.core.placement.buddy_blocks import NOWHERE
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import IntArray

OCCUPIED, IDLE, EMPTIED, BASE_HOLE, FORBIDDEN = 0, 1, 2, 3, 4
"""How welcome a worker is on a server, best first: beside its like; on one that is really idle; on one whose
flexible workers are gone in thought only; in what base workers leave free; not at all."""


class Grouping(NamedTuple):
    """How workers share servers.

    ``apart``: base and flexible workers are kept on separate servers on loan; ``holes``: where flexible
    workers find no such server they may still take what base workers leave free.
    """

    apart: bool
    holes: bool


class Room(NamedTuple):
    """One row a server, changed in place while workers are placed.

    ``free`` GPUs; its ``kind``; ``base`` and ``flexible`` workers placed so far; workers and flexible workers
    that were there ``before``.
    """

    free: IntArray
    kind: IntArray
    base: IntArray
    flexible: IntArray
    before: IntArray
    flexible_before: IntArray


class Held(NamedTuple):
    """Workers by kind (row) and job (column): ``base``, and ``flexible`` before this division."""

    base: IntArray
    flexible: IntArray


class Kept(NamedTuple):
    """The ``workers`` before this division and, of each of their entries, how many ``flexible`` ones stay
    there; these are changed in place."""

    workers: WorkerMap
    flexible: IntArray


@kernel
def tear_down(
    gpus: IntArray, on_loan: BoolArray, workers: WorkerMap, gpus_per_worker: IntArray
) -> tuple[Room, Held]:
    """The room that is left beside base workers, and what everybody holds (spec 2.5 step 0)."""
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
    """How welcome a base or flexible worker is beside ``base`` and ``present`` flexible ones."""
    if base > 0:
        if flexible and apart:
            return BASE_HOLE if holes else FORBIDDEN
        return OCCUPIED
    if present > 0:
        return FORBIDDEN if apart and not flexible else OCCUPIED
    return IDLE if before == 0 else EMPTIED


@kernel
def best_server(room: Room, kind: int, gpus: int, flexible: bool, grouping: Grouping) -> int:
    """The most welcoming server with room for one worker, the fullest of these, the first of those; or
    NOWHERE."""
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
    """Free GPUs of one kind of servers that base or flexible workers may use."""
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
    """Note so many workers on a server; a negative number takes them away."""
    room.free[server] -= number * gpus
    if flexible:
        room.flexible[server] += number
    else:
        room.base[server] += number


@kernel
def place_workers(
    room: Room, kind: int, gpus: int, count: int, flexible: bool, grouping: Grouping
) -> tuple[list[tuple[int, int]], int]:
    """Place up to ``count`` workers of one job by best fit; a list of (server, number) and how many found no
    room.

    A server that fits best once fits even better afterwards, so it is filled at once.
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
    """Place all base workers of a job or none; an empty list is none."""
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
    """Place the bases of jobs in the given order, each on its kind, all or nothing.

    Returns the placements and, per job, whether it found room.
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
    """Of the places where the job had flexible workers, the next one to take up again, or NOWHERE.

    The server with the most flexible workers comes first, so that those with few empty (spec 2.8); then the
    first one.
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
    """Put flexible workers back where they were, as many as each job may have on that kind. Returns how many
    each job has got."""
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
    """Take away workers that had returned, from the servers with the fewest flexible workers first."""
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
    """Place the flexible workers that could not return, by best fit, in the given order of jobs.

    ``got`` is how many each job has, and is changed; ``beyond`` the number of workers from which extra ones
    are counted. A job ends with a listed number: workers in between are given up. Returns the placements and
    whether GPUs became free by that, so that jobs placed before may try again.
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
