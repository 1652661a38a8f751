"""The forecast of forced moves for one set of plans after another, from the present placement.

Newcomers of one decision are tested one by one, each beside plans that are hardly others than those before.
What the forecast plays before the first change of size that is another comes out as it did, so it is not
played again: states are kept on the way, and the next forecast goes on from the last of them that still
holds. It finds exactly what a forecast from the beginning does.
"""

from __future__ import annotations

from functools import cached_property
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from scheduling.core.kernels import YES, kernel
from scheduling.core.placement.foresight import (
    foresee_moves,
    foresee_planned_moves,
    moves_found,
    planned_events,
)
from scheduling.core.placement.repacking import Seating
from scheduling.core.plans.charging import charged_finish
from scheduling.core.question.arrays import TIME_TOLERANCE, BoolArray, Plans
from scheduling.core.question.snapshot import FloatArray, IntArray

MOST_STATES = 32
MOST_BYTES = 1 << 24
"""Of all states that are kept: fewer are where the cluster is large."""
LEAST_BETWEEN = 32
"""Changes of size from one kept state to the next, at least: fewer are played sooner than a state is kept."""
NO_MOVES = (np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))


class Played(NamedTuple):
    """What the last forecast was made of and what it found, by row of the problem.

    ``chosen``: rows whose plans were played; ``time``, ``gpus`` and ``length`` those plans, ``latest`` when
    the last iteration had to end, ``slack`` seconds before that without any charge, ``seated`` GPUs at the
    start. ``events`` are (time, row, GPUs) in the order in which they were played, ``moved`` the rows that
    moved, ``seconds`` and ``at`` their pauses and when.
    """

    chosen: BoolArray
    time: FloatArray
    gpus: IntArray
    length: IntArray
    latest: FloatArray
    slack: FloatArray
    seated: IntArray
    event_time: FloatArray
    event_row: IntArray
    event_gpus: IntArray
    moved: IntArray
    at: FloatArray
    seconds: FloatArray


class States(NamedTuple):
    """Kept states, one a row, each between two instants of the last forecast.

    ``position``: events played before; ``moves``: found before; ``unblocked``: blocked addresses that were
    free again; ``homeless``: jobs without a usable place that had not been placed yet. The others are as in
    `Occupancy`, whose other arrays say nothing between two instants.
    """

    position: IntArray
    moves: IntArray
    unblocked: IntArray
    homeless: BoolArray
    owner: IntArray
    taken: IntArray
    next_block: IntArray
    base: IntArray
    size: IntArray
    first_block: IntArray
    slack: FloatArray


@kernel
def _changed_rows(played, plans, chosen, latest):  # type: ignore[no-untyped-def]
    """True for every row that is played now or was, but not with the same plan and latest end both times."""
    # Read through the tuples in the loop, each array would be counted as in use and released again each time.
    was_chosen = played.chosen
    old_time = played.time
    old_gpus = played.gpus
    old_length = played.length
    old_latest = played.latest
    time = plans.time
    gpus = plans.gpus
    length = plans.length
    changed = np.zeros(chosen.size, dtype=np.bool_)
    for row in range(chosen.size):
        if not chosen[row] or not was_chosen[row]:
            changed[row] = chosen[row] != was_chosen[row]
            continue
        if length[row] != old_length[row] or latest[row] != old_latest[row]:
            changed[row] = True
            continue
        for piece in range(length[row]):
            if time[row, piece] != old_time[row, piece] or gpus[row, piece] != old_gpus[row, piece]:
                changed[row] = True
                break
    return changed


@kernel
def _merged(played, changed, time, row_of, gpus):  # type: ignore[no-untyped-def]
    """The events with those of the ``changed`` rows exchanged for the given ones, sorted by time and row.

    Returns (times, rows, GPUs, how many at the beginning are as before).
    """
    old_time = played.event_time
    old_row = played.event_row
    old_gpus = played.event_gpus
    merged_time = np.empty(old_time.size + time.size)
    merged_row = np.empty(merged_time.size, dtype=np.int64)
    merged_gpus = np.empty(merged_time.size, dtype=np.int64)
    written = 0
    new = 0
    old = 0
    while old < old_time.size or new < time.size:
        if old < old_time.size and changed[old_row[old]]:
            old += 1
            continue
        takes_new = old == old_time.size
        if not takes_new and new < time.size:
            takes_new = (time[new], row_of[new]) < (old_time[old], old_row[old])
        if takes_new:
            merged_time[written] = time[new]
            merged_row[written] = row_of[new]
            merged_gpus[written] = gpus[new]
            new += 1
        else:
            merged_time[written] = old_time[old]
            merged_row[written] = old_row[old]
            merged_gpus[written] = old_gpus[old]
            old += 1
        written += 1
    same = 0
    while (
        same < min(written, old_time.size)
        and merged_time[same] == old_time[same]
        and merged_row[same] == old_row[same]
        and merged_gpus[same] == old_gpus[same]
    ):
        same += 1
    return merged_time[:written], merged_row[:written], merged_gpus[:written], same


@kernel
def _events(played, plans, chosen, changed, origin):  # type: ignore[no-untyped-def]
    """All events of the ``chosen`` rows, sorted, and how many at the beginning are as before (`_merged`)."""
    time, row_of, gpus = planned_events(plans, np.flatnonzero(changed & chosen), played.seated, origin, YES)
    order = np.argsort(time, kind="mergesort")
    return _merged(played, changed, time[order], row_of[order], gpus[order])


@kernel
def _note_plans(played, plans, changed):  # type: ignore[no-untyped-def]
    """Keep the plans of the changed rows."""
    for row in range(changed.size):
        if changed[row]:
            count = plans.length[row]
            played.length[row] = count
            played.time[row, :count] = plans.time[row, :count]
            played.gpus[row, :count] = plans.gpus[row, :count]


@kernel
def _same_until(played, changed, slack, move_seconds, row_of, same):  # type: ignore[no-untyped-def]
    """(events, moves) before which everything comes out as it did; ``same`` events at the beginning are so.

    An event may belong to the instant of the one before it: fewer than ``same`` are sure to be played as
    before.
    A changed row matters beside its own events where it is in somebody's way: by whether a move would make it
    late. That is known before its first move, and follows from its whole plan after it.
    """
    told = np.zeros(changed.size, dtype=np.bool_)
    for row in range(changed.size):
        if changed[row]:
            told[row] = (played.slack[row] < move_seconds[row]) != (slack[row] < move_seconds[row])
            if told[row] and played.seated[row] > 0:
                return 0, 0
    events = max(0, same - 1)
    for event in range(events):
        if told[row_of[event]]:
            events = event
            break
    moves = 0
    while moves < played.moved.size and not changed[played.moved[moves]]:
        moves += 1
    return events, moves


@kernel
def _slack_of_changed(jobs, plans, chosen, changed, latest, slack):  # type: ignore[no-untyped-def]
    """Slack without charges; ``slack`` holds that of the rows that did not change."""
    nothing = np.zeros(0)
    for row in range(changed.size):
        if changed[row]:
            slack[row] = np.inf
            if chosen[row]:
                finish, _ = charged_finish(jobs, plans, row, nothing, nothing)
                slack[row] = latest[row] - finish


@kernel
def _take_up(states, number, occupancy, moved):  # type: ignore[no-untyped-def]
    """Bring a fresh occupancy into a kept state; ``moved``: rows that had moved by then. Returns homeless."""
    occupancy.owner[:] = states.owner[number]
    occupancy.taken[:] = states.taken[number]
    occupancy.next_block[:] = states.next_block[number]
    occupancy.base[:] = states.base[number]
    occupancy.size[:] = states.size[number]
    occupancy.first_block[:] = states.first_block[number]
    # The others have the slack that their plans have now.
    for row in moved:
        occupancy.slack[row] = states.slack[number, row]
    return states.homeless[number].copy()


@kernel
def _keep(states, number, occupancy, homeless):  # type: ignore[no-untyped-def]
    states.homeless[number] = homeless
    states.owner[number] = occupancy.owner
    states.taken[number] = occupancy.taken
    states.next_block[number] = occupancy.next_block
    states.base[number] = occupancy.base
    states.size[number] = occupancy.size
    states.first_block[number] = occupancy.first_block
    states.slack[number] = occupancy.slack


@kernel
def _end_of_instants(time, position, least):  # type: ignore[no-untyped-def]
    """Where the instant ends in which the ``least`` th event from ``position`` on is, and when it begins."""
    wanted = min(position + least, time.size)
    at = time[position]
    while position < wanted:
        at = time[position]
        while position < time.size and time[position] <= at + TIME_TOLERANCE:
            position += 1
    return position, at


@kernel
def _foresee_and_keep(  # type: ignore[no-untyped-def]
    blocks, occupancy, jobs, plans, latest, moved, moved_at, moved_seconds, time, row_of, gpus, position,
    unblocked, homeless, rank, reluctance, blocked, blocked_until, fixed, states, used, between,
):  # fmt: skip
    """`foresee_moves` from an event on, with the moves found before it. A state is kept every ``between``
    events, while there is room.

    Returns (feasible, move rows, move times, pause seconds of each move, states kept).
    """
    while position < time.size:
        end = time.size
        at = time[position]
        if used < states.position.size:
            end, at = _end_of_instants(time, position, between)
        feasible, found, found_at, found_seconds = foresee_moves(
            blocks, occupancy, jobs, plans, latest, moved, moved_at, moved_seconds, time[position:end],
            row_of[position:end], gpus[position:end], homeless, rank, reluctance, blocked[unblocked:],
            blocked_until[unblocked:], fixed if position == 0 else fixed[:0],
        )  # fmt: skip
        moved, moved_at, moved_seconds = moves_found(found, found_at, found_seconds)
        if not feasible:
            return False, moved, moved_at, moved_seconds, used
        position = end
        if position < time.size:
            while unblocked < blocked.size and blocked_until[unblocked] <= at + TIME_TOLERANCE:
                unblocked += 1
            # Passes are counted from the beginning again.
            occupancy.settled[:] = 0
            states.position[used] = position
            states.moves[used] = moved.size
            states.unblocked[used] = unblocked
            _keep(states, used, occupancy, homeless)
            used += 1
    return True, moved, moved_at, moved_seconds, used


class ForesightFromNow:
    """Foresees the moves that plans force from the present placement on, for one set of plans after another.

    Plans begin at ``origin``. ``blocked`` addresses, in the order of ``blocked_until``, come free on the way.
    Neither the jobs nor where they are may change meanwhile. ``spared``: events of the last forecast that
    were not played again.
    """

    def __init__(self, seating: Seating, origin: float, blocked: IntArray, blocked_until: FloatArray) -> None:
        self.spared = 0
        self._seating = seating
        self._origin = origin
        self._blocked = (blocked, blocked_until)
        self._asked = False
        self._played: Played | None = None
        self._used = 0

    def moves(
        self, plans: Plans, rows: IntArray, latest: FloatArray, reluctance: IntArray
    ) -> tuple[bool, IntArray, FloatArray, FloatArray]:
        """(feasible, rows that have to move, when, pause seconds) under the plans of ``rows``, ascending.

        ``latest``: when the last iteration of each job must end, from which its slack follows.
        ``reluctance``: see `PauseBudget.reluctance`.
        """
        present = self._seating.present
        self.spared = 0
        chosen = np.zeros(plans.length.size, dtype=np.bool_)
        chosen[rows] = True
        if self._asked:
            return self._resumed(plans, rows, chosen, latest, reluctance)
        # Most decisions ask once: nothing is kept for them.
        self._asked = True
        slack = np.full(chosen.size, inf)
        _slack_of_changed(present.jobs, plans, chosen, chosen, latest, slack)
        occupancy = self._seating.fresh(slack)
        homeless = self._seating.enter(occupancy, rows)
        found: tuple[bool, IntArray, FloatArray, FloatArray] = foresee_planned_moves(
            present.blocks, occupancy, present.jobs, plans, latest, *NO_MOVES, rows, self._origin, YES,
            homeless, present.by_submission, reluctance, *self._blocked, rows[present.jobs.locked[rows]],
        )  # fmt: skip
        return found

    def _resumed(
        self, plans: Plans, rows: IntArray, chosen: BoolArray, latest: FloatArray, reluctance: IntArray
    ) -> tuple[bool, IntArray, FloatArray, FloatArray]:
        """The same, played from the last kept state that holds under these plans."""
        present = self._seating.present
        played = self._comparable(plans, chosen)
        changed = _changed_rows(played, plans, chosen, latest)
        slack = played.slack.copy()
        _slack_of_changed(present.jobs, plans, chosen, changed, latest, slack)
        occupancy = self._seating.fresh(slack)
        events = _events(played, plans, chosen, changed, self._origin)
        most_events, most_moves = _same_until(
            played, changed, slack, occupancy.move_seconds, events[1], events[3]
        )
        number = self._last_state(most_events, most_moves)
        if number < 0:
            homeless = self._seating.enter(occupancy, rows)
            position = unblocked = moves = 0
        else:
            position, moves, unblocked = (int(column[number]) for column in self._states[:3])
            homeless = _take_up(self._states, number, occupancy, played.moved[:moves])
        self._used = _thinned(self._states, number + 1)
        room = self._states.position.size - self._used
        between = max(LEAST_BETWEEN, ceil((events[0].size - position) / (room + 1)))
        feasible, moved, at, seconds, self._used = _foresee_and_keep(
            present.blocks, occupancy, present.jobs, plans, latest, played.moved[:moves], played.at[:moves],
            played.seconds[:moves], *events[:3], position, unblocked, homeless, present.by_submission,
            reluctance, *self._blocked, rows[present.jobs.locked[rows]], self._states, self._used, between,
        )  # fmt: skip
        self.spared = position
        _note_plans(played, plans, changed)
        self._played = played._replace(
            chosen=chosen, latest=latest, slack=slack, event_time=events[0], event_row=events[1],
            event_gpus=events[2], moved=moved, at=at, seconds=seconds,
        )  # fmt: skip
        return feasible, moved, at, seconds

    def _comparable(self, plans: Plans, chosen: BoolArray) -> Played:
        """What was played last, or nothing where others who hold GPUs were seated at its start."""
        present = self._seating.present
        played = self._played
        if played is None or ((played.chosen != chosen) & (present.jobs.gpus > 0)).any():
            self._used = 0
            start = self._seating.fresh()
            self._seating.enter(start, np.flatnonzero(chosen))
            return _nothing_played(plans, start.size)
        more = plans.time.shape[1] - played.time.shape[1]
        if more > 0:
            room = ((0, 0), (0, more))
            return played._replace(time=np.pad(played.time, room), gpus=np.pad(played.gpus, room))
        return played

    @cached_property
    def _states(self) -> States:
        """Room for as many states as may be kept."""
        present = self._seating.present
        return _no_states(present.blocks.block_of.size, present.blocks.base.size, present.jobs.work.size)

    def _last_state(self, most_events: int, most_moves: int) -> int:
        """The last state before which only so many events were played and moves found, -1 where none is."""
        states, used = self._states, self._used
        holds = (states.position[:used] <= most_events) & (states.moves[:used] <= most_moves)
        return int(holds.sum()) - 1


def _nothing_played(plans: Plans, seated: IntArray) -> Played:
    """No rows at all, with room for these plans."""
    jobs = plans.length.size
    return Played(
        chosen=np.zeros(jobs, dtype=np.bool_),
        time=np.zeros(plans.time.shape),
        gpus=np.zeros(plans.gpus.shape, dtype=np.int64),
        length=np.zeros(jobs, dtype=np.int64),
        latest=np.zeros(jobs),
        slack=np.full(jobs, inf),
        seated=seated,
        event_time=np.zeros(0),
        event_row=np.zeros(0, dtype=np.int64),
        event_gpus=np.zeros(0, dtype=np.int64),
        moved=NO_MOVES[0],
        at=NO_MOVES[1],
        seconds=NO_MOVES[2],
    )


def _no_states(addresses: int, blocks: int, jobs: int) -> States:
    """Room for states of a cluster of that size, none kept."""
    most = min(MOST_STATES, MOST_BYTES // (8 * (addresses + 2 * blocks + 5 * jobs) + 1))

    def numbers(length: int) -> IntArray:
        return np.zeros((most, length), dtype=np.int64)

    return States(
        position=np.zeros(most, dtype=np.int64),
        moves=np.zeros(most, dtype=np.int64),
        unblocked=np.zeros(most, dtype=np.int64),
        homeless=np.zeros((most, jobs), dtype=np.bool_),
        owner=numbers(addresses),
        taken=numbers(blocks),
        next_block=numbers(blocks),
        base=numbers(jobs),
        size=numbers(jobs),
        first_block=numbers(jobs),
        slack=np.zeros((most, jobs)),
    )


def _thinned(states: States, used: int) -> int:
    """Make room where none is left: every second state goes, not the last. Returns how many are kept."""
    if used < states.position.size:
        return used
    kept = np.arange(used)[::-1][::2][::-1]
    for column in states:
        column[: kept.size] = column[kept]
    return int(kept.size)
