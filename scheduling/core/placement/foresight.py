"""Foresight: play the planned changes of size forward to find which jobs must move, and when."""

from __future__ import annotations

import heapq
from typing import NamedTuple

import numpy as np

from kernels.compiling import NO, YES, ZERO, kernel, leaf
from scheduling.core.placement.buddy_blocks import Blocks
from scheduling.core.placement.occupancy import (
    END,
    FREE,
    SPREAD,
    UNPLACED,
    Occupancy,
    empty_occupancy,
    leave,
    lift,
    note_holder,
)
from scheduling.core.placement.placing import largest_block, place_queue, take_free_place
from scheduling.core.placement.repacking import Seats, enter, fresh
from scheduling.core.placement.trades import break_trades
from scheduling.core.plans.charging import Charges, charged_finish, seconds_left, slack_of
from scheduling.core.question.arrays import TIME_TOLERANCE, BoolArray, JobArrays, Plans
from scheduling.core.question.snapshot import FloatArray, IntArray


class Stage(NamedTuple):
    """The cluster and the jobs, the same for all sets of plans."""

    #: The cluster's buddy blocks.
    blocks: Blocks
    #: The jobs of the problem.
    jobs: JobArrays
    #: Order, by row, in which jobs of one size are placed.
    rank: IntArray
    #: Blocked addresses, sorted by the time at which they come free.
    blocked: IntArray
    #: When each of them comes free, in seconds from now.
    blocked_until: FloatArray


class Script(NamedTuple):
    """One set of plans to play. All arrays are by row of the problem."""

    #: The plans.
    plans: Plans
    #: When the last iteration must end, in seconds from now.
    latest: FloatArray
    #: Of jobs that wait for each other's GPUs in a circle, the one with the lowest value is suspended first.
    suspension_order: IntArray


class Events(NamedTuple):
    """Planned changes of size, sorted by time."""

    #: When, in seconds from now.
    time: FloatArray
    #: Row of the problem.
    row: IntArray
    #: GPUs that the job has from then on.
    gpus: IntArray


@kernel
def planned_events(
    plans: Plans, rows: IntArray, held_before: IntArray, after: float, at_origin: bool
) -> Events:
    """Every change of size in the plans of ``rows`` later than ``after``, sorted by time, then by ``rows``.

    ``at_origin``: changes at ``after`` itself count too. ``held_before``: GPUs of every job before them.
    """
    length = plans.length
    starts = plans.time
    held = plans.gpus
    total = 0
    for row in rows:
        total += length[row]
    time = np.empty(total)
    row_of = np.empty(total, dtype=np.int64)
    gpus = np.empty(total, dtype=np.int64)
    written = 0
    for row in rows:
        before = held_before[row]
        for piece in range(length[row]):
            at = starts[row, piece]
            later = at > after + TIME_TOLERANCE or (at_origin and at > after - TIME_TOLERANCE)
            if later and held[row, piece] != before:
                before = held[row, piece]
                time[written] = at
                row_of[written] = row
                gpus[written] = before
                written += 1
    order = np.argsort(time[:written], kind="mergesort")
    return Events(time[order], row_of[order], gpus[order])


@kernel
def without_last_ends(events: Events) -> Events:
    """The events up to the last instant at which a job is placed.

    After it jobs only give GPUs back, which forces no move.
    """
    time, row, gpus = events
    last = time.size - 1
    while last >= 0 and gpus[last] == 0:
        last -= 1
    end = last + 1
    # Events within the tolerance of the instant belong to it. The instant may begin before the last
    # placement, so the tolerance counts from the last placement: a few events too many do no harm.
    while last >= 0 and end < time.size and time[end] <= time[last] + TIME_TOLERANCE:
        end += 1
    return Events(time[:end], row[:end], gpus[:end])


@leaf
def _unblock(stage: Stage, occupancy: Occupancy, before: IntArray, unblocked: int, at: float) -> int:
    """Free the blocked addresses that come free by ``at``; returns how many are free now."""
    while unblocked < stage.blocked.size and stage.blocked_until[unblocked] <= at + TIME_TOLERANCE:
        address = stage.blocked[unblocked]
        occupancy.owner[address] = FREE
        occupancy.taken[stage.blocks.block_of[address]] -= 1
        before[address] = FREE
        unblocked += 1
    return unblocked


@leaf
def _pause_now(jobs: JobArrays, occupancy: Occupancy, row: int) -> float:
    for level in range(jobs.level_count[row]):
        if jobs.levels[row, level] == occupancy.size[row]:
            return float(jobs.pause[row, level])
    return 0.0


class Places(NamedTuple):
    """Where every job sits at one instant; each field is a copy of that of `Occupancy`."""

    #: By row: first address of the job's place, SPREAD, or UNPLACED.
    base: IntArray
    #: By row: GPUs of the place.
    size: IntArray
    #: By row: first block of a SPREAD job.
    first_block: IntArray
    #: By block: next block of the same SPREAD job, or END.
    next_block: IntArray


@kernel
def _places(occupancy: Occupancy) -> Places:
    return Places(
        occupancy.base.copy(),
        occupancy.size.copy(),
        occupancy.first_block.copy(),
        occupancy.next_block.copy(),
    )


@leaf
def _forget(before: IntArray, low: int, high: int, row: int) -> None:
    for address in range(low, high):
        if before[address] == row:
            before[address] = FREE


@leaf
def _remember(
    blocks: Blocks, occupancy: Occupancy, before: IntArray, changed: IntArray, prior: Places
) -> None:
    """Update ``before`` and ``prior`` to the present places of the ``changed`` rows."""
    for row in changed:
        if prior.base[row] >= 0:
            _forget(before, prior.base[row], prior.base[row] + prior.size[row], row)
        elif prior.base[row] == SPREAD:
            block = prior.first_block[row]
            while block != END:
                _forget(before, blocks.base[block], blocks.base[block] + blocks.size[block], row)
                block = prior.next_block[block]
    for row in changed:
        note_holder(blocks, occupancy, row, before, row)
        prior.base[row] = occupancy.base[row]
        prior.size[row] = occupancy.size[row]
        if occupancy.base[row] == SPREAD:
            prior.first_block[row] = occupancy.first_block[row]
            block = occupancy.first_block[row]
            while block != END:
                prior.next_block[block] = occupancy.next_block[block]
                block = occupancy.next_block[block]


@leaf
def _end(blocks: Blocks, occupancy: Occupancy, before: IntArray, prior: Places, row: int) -> None:
    """Take the job ``row`` off its GPUs for good."""
    note_holder(blocks, occupancy, row, before, FREE)
    leave(blocks, occupancy, row)
    prior.base[row] = UNPLACED
    prior.size[row] = 0


@kernel
def _slack_left(
    jobs: JobArrays,
    script: Script,
    row: int,
    newest: IntArray,
    older: list[int],
    move_time: list[float],
    move_seconds: list[float],
) -> float:
    """Seconds between the finish of a job with all its moves so far and its latest finish.

    ``newest``: index of the last move of each row, or -1. ``older``: for each move, the index of the move
    before it of the same row, or -1.
    """
    count = 0
    move = newest[row]
    while move >= 0:
        count += 1
        move = older[move]
    at = np.empty(count)
    seconds = np.empty(count)
    move = newest[row]
    while move >= 0:
        count -= 1
        at[count] = move_time[move]
        seconds[count] = move_seconds[move]
        move = older[move]
    finish, _ = charged_finish(jobs, script.plans, row, at, seconds)
    return seconds_left(finish, script.latest[row])


@kernel
def _as_charges(row: list[int], at: list[float], seconds: list[float]) -> Charges:
    """The lists as `Charges`."""
    move_row = np.empty(len(row), dtype=np.int64)
    move_at = np.empty(len(row))
    move_seconds = np.empty(len(row))
    for index in range(len(row)):
        move_row[index] = row[index]
        move_at[index] = at[index]
        move_seconds[index] = seconds[index]
    return Charges(move_row, move_at, move_seconds)


class Starting(NamedTuple):
    """Jobs that change size at one instant; the arrays may be longer than there are such jobs."""

    #: Row of the problem.
    row: IntArray
    #: GPUs that the job takes.
    gpus: IntArray


@leaf
def _begin_instant(
    blocks: Blocks,
    occupancy: Occupancy,
    before: IntArray,
    prior: Places,
    events: Events,
    position: int,
    starting: Starting,
) -> tuple[int, int]:
    """Play the instant of the event at ``position`` up to the placing: jobs end, or are taken off their GPUs.

    The jobs to be placed are written to ``starting``. Returns (position after the instant, their number).
    """
    event_time, event_row, event_gpus = events
    at = event_time[position]
    count = 0
    while position < event_time.size and event_time[position] <= at + TIME_TOLERANCE:
        row = event_row[position]
        size = event_gpus[position]
        position += 1
        if size == occupancy.size[row]:
            continue
        if size == 0:
            _end(blocks, occupancy, before, prior, row)
            continue
        if occupancy.size[row] > 0:
            lift(blocks, occupancy, row)
        starting.row[count] = row
        starting.gpus[count] = size
        count += 1
    return position, count


@kernel
def _queue_of(
    occupancy: Occupancy, starting: Starting, count: int, homeless: BoolArray, rank: IntArray
) -> list[tuple[int, int, int, int]]:
    """The first ``count`` jobs of ``starting`` as `place_queue` takes them."""
    queue = [(0, 0, 0, 0) for _ in range(0)]
    for index in range(count):
        row = starting.row[index]
        had_gpus = occupancy.old_base[row] != UNPLACED or homeless[row]
        heapq.heappush(queue, (-starting.gpus[index], 0 if had_gpus else 1, rank[row], row))
    return queue


@kernel
def foresee_moves(
    stage: Stage,
    occupancy: Occupancy,
    script: Script,
    charges: Charges,
    events: Events,
    homeless: BoolArray,
    fixed: IntArray,
) -> tuple[bool, Charges]:
    """Play planned changes of size forward and charge each job that must move for others.

    ``occupancy``: the placement at the start; it changes in place. ``homeless``: True for rows without a
    usable place; it changes in place. ``events``: sorted by time. ``fixed``: rows that do not move in the
    first instant. ``charges``: pauses so far, which reduce the slack of their jobs. Returns (True if every
    change finds a place, ``charges`` and the pauses of all forced moves). The pause of a change of size is
    part of the plan already: it is charged only if breaking a trade makes it longer.
    """
    blocks, jobs, rank, _, _ = stage
    event_time, event_row, event_gpus = events
    before = occupancy.owner.copy()
    prior = _places(occupancy)
    move_row = list(charges.job)
    move_time = list(charges.time)
    move_seconds = list(charges.seconds)
    newest = np.full(jobs.work.size, -1)
    older = [0 for _ in range(0)]
    for move in range(len(move_row)):
        older.append(newest[move_row[move]])
        newest[move_row[move]] = move
    pause = np.zeros(jobs.work.size)
    run = 1
    for row in fixed:
        occupancy.settled[row] = run + 1
    unblocked = ZERO
    position = 0
    starting = Starting(np.empty(event_time.size, dtype=np.int64), np.empty(event_time.size, dtype=np.int64))
    largest = largest_block(blocks)
    nobody_waits = np.zeros(1)
    while position < event_time.size:
        at = event_time[position]
        run += 1
        unblocked = _unblock(stage, occupancy, before, unblocked, at)
        position, count = _begin_instant(blocks, occupancy, before, prior, events, position, starting)
        if count == 0:
            continue
        # Most jobs of a forecast start alone on free GPUs. The queue takes longer than their placing.
        if count == 1 and take_free_place(blocks, occupancy, starting.row[0], starting.gpus[0], largest, run):
            changed = starting.row[:1]
            waits = nobody_waits
            pause[changed[0]] = _pause_now(jobs, occupancy, changed[0])
        else:
            placed, failed = place_queue(
                blocks, occupancy, _queue_of(occupancy, starting, count, homeless, rank), rank, run
            )
            if len(failed) > 0:
                return False, _as_charges(move_row, move_time, move_seconds)
            changed = np.empty(len(placed), dtype=np.int64)
            for index in range(len(placed)):
                changed[index] = placed[index]
                pause[placed[index]] = _pause_now(jobs, occupancy, placed[index])
            _, _, waits = break_trades(blocks, occupancy, before, changed, pause, script.suspension_order)
        for index in range(changed.size):
            row = changed[index]
            if prior.size[row] == occupancy.size[row] or homeless[row] or waits[index] > 0.0:
                older.append(newest[row])
                newest[row] = len(move_row)
                move_row.append(row)
                move_time.append(at)
                move_seconds.append(pause[row] + waits[index])
                occupancy.slack[row] = _slack_left(jobs, script, row, newest, older, move_time, move_seconds)
            homeless[row] = False
        _remember(blocks, occupancy, before, changed, prior)
    return True, _as_charges(move_row, move_time, move_seconds)


@kernel
def promised_part(blocks: Blocks, occupancy: Occupancy, blocked: IntArray, rows: IntArray) -> Occupancy:
    """A placement with the jobs of ``rows`` where they sit in ``occupancy``, and blocked GPUs."""
    part = empty_occupancy(blocks, blocked, occupancy.base.size)
    part.next_block[:] = occupancy.next_block
    for row in rows:
        _copy_place(blocks, occupancy, part, row)
    return part


@leaf
def _copy_place(blocks: Blocks, occupancy: Occupancy, part: Occupancy, row: int) -> None:
    """Seat a job in ``part`` where it sits in ``occupancy``; ``part`` must have a copy of ``next_block``."""
    base = occupancy.base[row]
    part.base[row] = base
    part.size[row] = occupancy.size[row]
    part.first_block[row] = occupancy.first_block[row]
    note_holder(blocks, part, row, part.owner, row)
    if base >= 0:
        part.taken[blocks.block_of[base]] += occupancy.size[row]
    block = occupancy.first_block[row] if base == SPREAD else END
    while block != END:
        part.taken[block] += blocks.size[block]
        block = occupancy.next_block[block]


@kernel
def no_charges() -> Charges:
    """`NO_CHARGES` for kernels."""
    return Charges(np.empty(0, dtype=np.int64), np.empty(0), np.empty(0))


@kernel
def foresee_from_present(
    stage: Stage, seats: Seats, script: Script, rows: IntArray, origin: float
) -> tuple[bool, Charges]:
    """`foresee_moves` for the plans of ``rows``, from the present placement; the next slot is included.

    ``origin``: when the next slot begins, in seconds from now.
    """
    occupancy = fresh(
        stage.blocks, seats, slack_of(stage.jobs, script.plans, rows, script.latest, no_charges())
    )
    homeless = enter(stage.blocks, occupancy, seats, rows)
    events = without_last_ends(planned_events(script.plans, rows, occupancy.size, origin, YES))
    fixed = fixed_at_first(stage.jobs, rows, events, origin)
    return foresee_moves(stage, occupancy, script, no_charges(), events, homeless, fixed)


@kernel
def fixed_at_first(jobs: JobArrays, rows: IntArray, events: Events, origin: float) -> IntArray:
    """The rows that do not move at the first event: the locked jobs if that event begins the next slot."""
    if events.time.size == 0 or events.time[0] > origin + TIME_TOLERANCE:
        return rows[:0]
    return rows[jobs.locked[rows]]


@kernel
def foresee_after(
    stage: Stage,
    seats: Seats,
    occupancy: Occupancy,
    script: Script,
    rows: IntArray,
    charges: Charges,
    origin: float,
) -> tuple[bool, Charges]:
    """`foresee_moves` for the plans of ``rows``, from ``occupancy``, the placement of the next slot.

    ``charges``: the pauses of the next slot. ``origin``: when it begins, in seconds from now. Returns
    (feasible, all charges).
    """
    events = without_last_ends(planned_events(script.plans, rows, occupancy.size, origin, NO))
    if events.time.size == 0:
        return True, charges
    start = promised_part(stage.blocks, occupancy, seats.blocked, rows)
    start.slack[:] = slack_of(stage.jobs, script.plans, rows, script.latest, charges)
    start.move_seconds[:] = seats.move_seconds
    nobody = np.zeros(start.base.size, dtype=np.bool_)
    return foresee_moves(stage, start, script, charges, events, nobody, rows[:0])
