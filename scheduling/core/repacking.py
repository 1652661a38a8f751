"""One repack of the whole cluster, and what it changes (spec 2.9)."""

from __future__ import annotations

import heapq
from collections.abc import Sequence

import numpy as np

from scheduling.core.arrays import TIME_TOLERANCE, BoolArray
from scheduling.core.blocks import NOWHERE
from scheduling.core.charging import charged_finish
from scheduling.core.compiling import kernel
from scheduling.core.placement import (
    BLOCKED,
    FREE,
    UNPLACED,
    Occupancy,
    addresses_of,
    empty_occupancy,
    leave,
    lift,
    place_queue,
    seat,
)
from scheduling.core.problem import Problem
from scheduling.core.snapshot import FloatArray, IntArray
from scheduling.core.trades import break_trades

RUN = 1


@kernel
def _repack(blocks, occupancy, rows, wanted, homeless, rank):  # type: ignore[no-untyped-def]
    """Bring every row to its wanted size; returns the rows for which there was no room."""
    queue = [(0, 0, 0, 0) for _ in range(0)]
    for row in rows:
        if wanted[row] == 0:
            leave(blocks, occupancy, row)
        elif wanted[row] != occupancy.size[row]:
            waited = 0 if occupancy.size[row] > 0 or homeless[row] else 1
            if occupancy.size[row] > 0:
                lift(blocks, occupancy, row)
            heapq.heappush(queue, (-wanted[row], waited, rank[row], row))
    _, failed = place_queue(blocks, occupancy, queue, rank, RUN)
    result = np.empty(len(failed), dtype=np.int64)
    for position in range(len(failed)):
        result[position] = failed[position]
    return result


class Seating:
    """Present placements, entered into fresh occupancies as often as a decision needs."""

    def __init__(self, problem: Problem) -> None:
        self.problem = problem
        self.addresses, self.offsets = problem.columns.addresses, problem.columns.offsets

    def _enter_locked(self, occupancy: Occupancy, rows: Sequence[int]) -> None:
        """Seat locked jobs so that nobody moves them; GPUs of an irregular one are blocked."""
        if not rows:
            return
        homeless = self.enter(occupancy, rows)
        occupancy.settled[list(rows)] = RUN
        block_of = self.problem.blocks.block_of
        for row in np.flatnonzero(homeless).tolist():
            for address in self.problem.placement(row).tolist():
                if address < block_of.size and block_of[address] != NOWHERE:
                    occupancy.owner[address] = BLOCKED
                    occupancy.taken[block_of[address]] += 1

    def fresh_with_locked(self, slack: FloatArray | None) -> Occupancy:
        """An occupancy with the locked jobs alone, fixed."""
        occupancy = self.fresh(slack)
        self._enter_locked(occupancy, self.problem.locked)
        return occupancy

    def enter(self, occupancy: Occupancy, rows: Sequence[int] | IntArray) -> BoolArray:
        """Seat the jobs among ``rows``; True per row of the problem whose GPUs are not usable."""
        homeless: BoolArray = seat(
            self.problem.blocks,
            occupancy,
            np.asarray(rows, dtype=np.int64),
            self.addresses,
            self.offsets,
            self.problem.jobs.gpus,
        )
        return homeless

    def fresh(self, slack: FloatArray | None = None) -> Occupancy:
        """An occupancy with nobody in it, blocked GPUs marked. ``slack``: see `Occupancy`; None: nobody is promised."""
        problem = self.problem
        occupancy: Occupancy = empty_occupancy(problem.blocks, problem.blocked, problem.jobs.work.size)
        if slack is not None:
            self.note_slack(occupancy, slack)
        return occupancy

    def note_slack(self, occupancy: Occupancy, slack: FloatArray) -> None:
        """Tell the placement who can bear a move."""
        occupancy.slack[:] = slack
        occupancy.move_seconds[:] = self.problem.jobs.pause.max(axis=1)


def repack_together(
    seating: Seating, wanted: IntArray, slack: FloatArray | None = None
) -> tuple[Occupancy, list[int]]:
    """Place all jobs at once, larger ones first. Returns the places and the jobs left out (none,
    as long as the sizes are powers of two and fit in sum)."""
    problem = seating.problem
    rows = np.flatnonzero(~problem.jobs.locked[: problem.count])
    occupancy = seating.fresh_with_locked(slack)
    homeless = seating.enter(occupancy, rows)
    failed = _repack(problem.blocks, occupancy, rows, wanted, homeless, problem.by_submission)
    return occupancy, failed.tolist()


def repack_promises_first(
    seating: Seating, wanted: IntArray, promised: Sequence[int], slack: FloatArray | None = None
) -> tuple[Occupancy, list[int]]:
    """Place promised jobs as though nobody else were there, then the others in what is left.

    This is exactly the placement that the forecast of promises foresaw. Returns the places and
    the other jobs for which no aligned block was left.
    """
    problem = seating.problem
    jobs = problem.count
    first = [row for row in promised if row < jobs and not problem.jobs.locked[row]]
    occupancy = seating.fresh_with_locked(slack)
    homeless = seating.enter(occupancy, first)
    failed = _repack(
        problem.blocks, occupancy, np.array(first, dtype=np.int64), wanted, homeless, problem.by_submission
    )
    if failed.size:
        return occupancy, failed.tolist()
    occupancy.settled[first] = RUN
    ahead = set(first)
    others = [row for row in range(jobs) if row not in ahead and not problem.jobs.locked[row]]
    homeless = seating.enter(occupancy, [row for row in others if wanted[row] > 0])
    failed = _repack(
        problem.blocks, occupancy, np.array(others, dtype=np.int64), wanted, homeless, problem.by_submission
    )
    return occupancy, failed.tolist()


@kernel
def new_addresses(blocks, occupancy, held, held_offsets, gpus, locked):  # type: ignore[no-untyped-def]
    """GPUs of all jobs in one array with offsets, and True for every job whose GPUs are others than now.

    ``held`` and ``held_offsets`` are the present placements; locked jobs keep theirs.
    """
    rows = held_offsets.size - 1
    offsets = np.zeros(rows + 1, dtype=np.int64)
    for row in range(rows):
        size = occupancy.size[row] if occupancy.base[row] != UNPLACED else 0
        if locked[row]:
            size = held_offsets[row + 1] - held_offsets[row]
        offsets[row + 1] = offsets[row] + size
    addresses = np.empty(offsets[rows], dtype=np.int64)
    changed = np.zeros(rows, dtype=np.bool_)
    for row in range(rows):
        position = offsets[row]
        size = offsets[row + 1] - position
        old = held[held_offsets[row] : held_offsets[row + 1]]
        if locked[row]:
            addresses[position : position + size] = old
            continue
        changed[row] = gpus[row] != size or old.size != size
        if not changed[row]:
            for address in old:
                if address >= occupancy.owner.size or occupancy.owner[address] != row:
                    changed[row] = True
        for address in addresses_of(blocks, occupancy, row):
            addresses[position] = address
            position += 1
    return addresses, offsets, changed


@kernel
def planned_events(plans, rows, after, at_origin):  # type: ignore[no-untyped-def]
    """(time, row, GPUs) of every change of size later than ``after``, or from it on, unsorted."""
    total = 0
    for row in rows:
        total += plans.length[row]
    time = np.empty(total)
    row_of = np.empty(total, dtype=np.int64)
    gpus = np.empty(total, dtype=np.int64)
    written = 0
    for row in rows:
        for piece in range(plans.length[row]):
            at = plans.time[row, piece]
            if at > after + TIME_TOLERANCE or (at_origin and at > after - TIME_TOLERANCE):
                time[written] = at
                row_of[written] = row
                gpus[written] = plans.gpus[row, piece]
                written += 1
    return time[:written], row_of[:written], gpus[:written]


@kernel
def _unblock(blocks, occupancy, before, blocked, blocked_until, unblocked, at):  # type: ignore[no-untyped-def]
    """Free the blocked addresses whose time is up; returns how many are free by now."""
    while unblocked < blocked.size and blocked_until[unblocked] <= at + TIME_TOLERANCE:
        address = blocked[unblocked]
        occupancy.owner[address] = FREE
        occupancy.taken[blocks.block_of[address]] -= 1
        before[address] = FREE
        unblocked += 1
    return unblocked


@kernel
def _pause_now(jobs, occupancy, row):  # type: ignore[no-untyped-def]
    for level in range(jobs.level_count[row]):
        if jobs.levels[row, level] == occupancy.size[row]:
            return jobs.pause[row, level]
    return 0.0


@kernel
def _slack_left(jobs, plans, latest, row, move_row, move_time, move_seconds):  # type: ignore[no-untyped-def]
    """Seconds between the end of a job under the moves noted for it, in the order of time, and its latest end."""
    if latest[row] == np.inf:
        return np.inf
    count = 0
    for one in move_row:
        if one == row:
            count += 1
    at = np.empty(count)
    seconds = np.empty(count)
    count = 0
    for move in range(len(move_row)):
        if move_row[move] == row:
            at[count] = move_time[move]
            seconds[count] = move_seconds[move]
            count += 1
    finish, _ = charged_finish(jobs, plans, row, at, seconds)
    return latest[row] - finish


@kernel
def foresee_moves(  # type: ignore[no-untyped-def]
    blocks, occupancy, jobs, plans, latest, charge_row, charge_time, charge_seconds, time, row_of, gpus, homeless, rank,
    reluctance, blocked, blocked_until, fixed,
):  # fmt: skip
    """Play planned changes of size forward and note which jobs their placement forces to move.

    Starts from ``occupancy``, which is changed in place; the events are sorted by time. ``blocked``
    addresses, sorted by ``blocked_until``, come free on the way; the ``fixed`` rows cannot be moved
    by the first event. ``plans``, ``latest`` and the charges made so far tell how much slack each job has left. Returns (feasible, move rows, move times, pause seconds of each move). Moves
    that come with a change of size are part of the plan already and only noted when breaking a
    trade makes them longer.
    """
    before = occupancy.owner.copy()
    prior_base = occupancy.base.copy()
    prior_size = occupancy.size.copy()
    move_row = list(charge_row)
    move_time = list(charge_time)
    move_seconds = list(charge_seconds)
    pause = np.zeros(jobs.work.size)
    run = 1
    for row in fixed:
        occupancy.settled[row] = run + 1
    unblocked = 0
    position = 0
    while position < time.size:
        at = time[position]
        run += 1
        unblocked = _unblock(blocks, occupancy, before, blocked, blocked_until, unblocked, at)
        queue = [(0, 0, 0, 0) for _ in range(0)]
        while position < time.size and time[position] <= at + TIME_TOLERANCE:
            row = row_of[position]
            size = gpus[position]
            position += 1
            if size == occupancy.size[row]:
                continue
            if size == 0:
                for address in addresses_of(blocks, occupancy, row):
                    before[address] = FREE
                leave(blocks, occupancy, row)
                prior_base[row] = UNPLACED
                prior_size[row] = 0
                continue
            waited = 0 if occupancy.size[row] > 0 or homeless[row] else 1
            if occupancy.size[row] > 0:
                lift(blocks, occupancy, row)
            heapq.heappush(queue, (-size, waited, rank[row], row))
        if len(queue) == 0:
            continue
        placed, failed = place_queue(blocks, occupancy, queue, rank, run)
        if len(failed) > 0:
            return False, move_row, move_time, move_seconds
        changed = np.empty(len(placed), dtype=np.int64)
        for index in range(len(placed)):
            changed[index] = placed[index]
            pause[placed[index]] = _pause_now(jobs, occupancy, placed[index])
        _, _, waits = break_trades(blocks, occupancy, before, changed, pause, reluctance)
        for index in range(changed.size):
            row = changed[index]
            if prior_size[row] == occupancy.size[row] or homeless[row] or waits[index] > 0.0:
                move_row.append(row)
                move_time.append(at)
                move_seconds.append(pause[row] + waits[index])
                occupancy.slack[row] = _slack_left(
                    jobs, plans, latest, row, move_row, move_time, move_seconds
                )
            homeless[row] = False
        _remember(blocks, occupancy, before, changed, prior_base, prior_size)
    return True, move_row, move_time, move_seconds


@kernel
def foresee_planned_moves(  # type: ignore[no-untyped-def]
    blocks, occupancy, jobs, plans, latest, charge_row, charge_time, charge_seconds, rows, after, at_origin, homeless,
    rank, reluctance, blocked, blocked_until, fixed,
):  # fmt: skip
    """`foresee_moves` of the plans of ``rows``, from ``after`` on; the given charges and the moves as arrays."""
    time, row_of, gpus = planned_events(plans, rows, after, at_origin)
    order = np.argsort(time, kind="mergesort")
    feasible, row, at, seconds = foresee_moves(
        blocks, occupancy, jobs, plans, latest, charge_row, charge_time, charge_seconds, time[order], row_of[order],
        gpus[order], homeless, rank, reluctance, blocked, blocked_until, fixed,
    )  # fmt: skip
    move_row = np.empty(len(row), dtype=np.int64)
    move_at = np.empty(len(row))
    move_seconds = np.empty(len(row))
    for index in range(len(row)):
        move_row[index] = row[index]
        move_at[index] = at[index]
        move_seconds[index] = seconds[index]
    return feasible, move_row, move_at, move_seconds


@kernel
def promised_part(blocks, occupancy, blocked, rows):  # type: ignore[no-untyped-def]
    """The placement of the jobs of ``rows`` alone, and blocked GPUs."""
    part = empty_occupancy(blocks, blocked, occupancy.base.size)
    chosen = np.zeros(occupancy.base.size, dtype=np.bool_)
    for row in rows:
        chosen[row] = True
        part.base[row] = occupancy.base[row]
        part.size[row] = occupancy.size[row]
    for address in range(occupancy.owner.size):
        job = occupancy.owner[address]
        if job >= 0 and chosen[job]:
            part.owner[address] = job
            part.taken[blocks.block_of[address]] += 1
    return part


@kernel
def _remember(blocks, occupancy, before, changed, prior_base, prior_size):  # type: ignore[no-untyped-def]
    """Make ``before`` and the prior places those of now, for the jobs that changed."""
    for row in changed:
        low = 0
        high = before.size
        if prior_base[row] >= 0:
            low = prior_base[row]
            high = low + prior_size[row]
        elif prior_base[row] == UNPLACED:
            high = 0
        for address in range(low, high):
            if before[address] == row:
                before[address] = -1
    for row in changed:
        for address in addresses_of(blocks, occupancy, row):
            before[address] = row
        prior_base[row] = occupancy.base[row]
        prior_size[row] = occupancy.size[row]
