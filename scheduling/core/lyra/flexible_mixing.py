"""Jobs that may use owned and on-loan servers at once (Lyra 3.5).

They are placed after all other jobs, and their base workers may be split over both kinds.
"""

from __future__ import annotations

import numpy as np

from kernels.compiling import NO, kernel
from scheduling.core.lyra.base_and_flexible import LENT, OWNED, Demands, base_on
from scheduling.core.lyra.base_demands import BaseDemandsMet, Skip, fits_alone
from scheduling.core.lyra.fleet import Fleet
from scheduling.core.lyra.worker_placement import (
    Grouping,
    Room,
    as_rows,
    place_gang,
    place_workers,
    put,
    usable_gpus,
)
from scheduling.core.question.arrays import BoolArray
from scheduling.core.question.snapshot import IntArray


def admit_mixing(
    fleet: Fleet, room: Room, demands: Demands, jobs: IntArray, grouping: Grouping, *, strict: bool
) -> BaseDemandsMet:
    """Place the base workers of mixing ``jobs`` one by one in the given order.

    Owned servers are tried first, then on-loan servers, then both together. With ``strict`` the first job
    that does not fit blocks the jobs behind it.
    """
    alone = fits_alone(fleet.gpus, fleet.on_loan, demands, jobs)
    placed, started, enough = _place_mixing(room, demands, jobs, alone, grouping, strict)
    waiting = np.flatnonzero(~started)
    reason = np.where(enough[waiting], int(Skip.FRAGMENTED), int(Skip.NO_ROOM))
    if strict and waiting.size:
        able = waiting[alone[waiting]]
        reason[np.isin(waiting, able[1:])] = Skip.HELD_UP
    reason[~alone[waiting]] = Skip.UNSCHEDULABLE
    return BaseDemandsMet(np.sort(jobs[started]), placed, jobs[waiting], reason)


@kernel
def _place_mixing(
    room: Room, demands: Demands, jobs: IntArray, alone: BoolArray, grouping: Grouping, strict: bool
) -> tuple[IntArray, BoolArray, BoolArray]:
    """Place mixing jobs in order. Returns the placements, which jobs started, and which did not start though
    enough GPUs were free."""
    placed = [(0, 0, 0, 0) for _ in range(0)]
    started = np.zeros(jobs.size, dtype=np.bool_)
    enough = np.zeros(jobs.size, dtype=np.bool_)
    left = np.array([usable_gpus(room, kind, NO, grouping) for kind in (OWNED, LENT)])
    for position in range(jobs.size):
        job = jobs[position]
        if not alone[position]:
            continue
        gpus = demands.gpus_per_worker[job]
        enough[position] = _has_share(demands, job, left[OWNED] // gpus, left[LENT] // gpus)
        if enough[position]:
            gang = _gang_anywhere(room, demands, job, gpus, grouping)
            for server, number in gang:
                placed.append((job, server, number, 0))
                left[room.kind[server]] -= number * gpus
            started[position] = len(gang) > 0
        if strict and not started[position]:
            break
    return as_rows(placed), started, enough


@kernel
def _has_share(demands: Demands, job: int, owned_workers: int, lent_workers: int) -> bool:
    """Whether these workers on both kinds together amount to the job's base demand."""
    share = 0.0
    if base_on(demands, job, OWNED) > 0:
        share += owned_workers / base_on(demands, job, OWNED)
    if base_on(demands, job, LENT) > 0:
        share += lent_workers / base_on(demands, job, LENT)
    return share >= 1.0


@kernel
def _gang_anywhere(
    room: Room, demands: Demands, job: int, gpus: int, grouping: Grouping
) -> list[tuple[int, int]]:
    """Place all base workers on one kind of servers, or split over both; an empty list where they do not
    fit."""
    gang = [(0, 0) for _ in range(0)]
    owned, lent = base_on(demands, job, OWNED), base_on(demands, job, LENT)
    if owned > 0:
        gang = place_gang(room, OWNED, gpus, owned, grouping)
    if len(gang) == 0 and lent > 0:
        gang = place_gang(room, LENT, gpus, lent, grouping)
    if len(gang) > 0 or owned == 0 or lent == 0:
        return gang
    first, missing = place_workers(room, OWNED, gpus, owned - 1, NO, grouping)
    instead = -(-(missing + 1) * lent // owned)
    second = place_gang(room, LENT, gpus, instead, grouping) if len(first) > 0 else gang
    if len(second) == 0:
        for server, number in first:
            put(room, server, -number, gpus, NO)
        return second
    return first + second
