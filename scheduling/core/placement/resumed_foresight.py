"""Resumed foresight: forecast the forced moves of one set of plans after another, reusing earlier forecasts.

Admission tests newcomers one by one, each beside almost the same plans. Up to the first change of size that
differs, a forecast repeats the last one. So forecasts keep states on the way, and the next forecast resumes
from the last state that is still valid. The result equals that of a forecast from the beginning.
"""

from __future__ import annotations

from functools import cached_property
from math import ceil, inf
from typing import NamedTuple

import numpy as np

from kernels.compiling import YES, ZERO, kernel
from scheduling.core.placement.foresight import (
    Events,
    Script,
    Stage,
    fixed_at_first,
    foresee_from_present,
    foresee_moves,
    planned_events,
    without_last_ends,
)
from scheduling.core.placement.occupancy import Occupancy
from scheduling.core.placement.repacking import Seating
from scheduling.core.plans.charging import NO_CHARGES, Charges, charged_finish, seconds_left
from scheduling.core.question.arrays import TIME_TOLERANCE, BoolArray, JobArrays, Plans
from scheduling.core.question.snapshot import FloatArray, IntArray

MOST_STATES = 16
"""The most states that are kept."""
MOST_BYTES = 1 << 24
"""The most memory of all states; on a large cluster it allows fewer than `MOST_STATES`."""
FROM_THE_BEGINNING = 3
"""The first forecasts of a decision keep no states: most decisions need no more, and keeping states costs
more than playing once."""
LEAST_BETWEEN = 32
"""The fewest events between two kept states: playing fewer again is cheaper than keeping a state."""


class Played(NamedTuple):
    """The input and the result of the last forecast. Arrays are by row of the problem."""

    #: True for rows whose plans were played.
    chosen: BoolArray
    #: Times of the pieces of these plans, as in `Plans`.
    time: FloatArray
    #: GPUs of the pieces.
    gpus: IntArray
    #: Number of pieces.
    length: IntArray
    #: When the last iteration had to end, in seconds from now.
    latest: FloatArray
    #: Seconds between the finish without charges and ``latest``.
    slack: FloatArray
    #: GPUs at the start of the forecast.
    seated: IntArray
    #: All changes of size.
    events: Events
    #: Pauses of the forced moves that were found.
    moves: Charges


class States(NamedTuple):
    """Kept states of the last forecast, one per row of each array, each between two instants.

    The other fields of `Occupancy` are not in use between two instants.
    """

    #: Number of events played before the state.
    position: IntArray
    #: Number of forced moves found before it.
    moves: IntArray
    #: Number of blocked addresses that had come free.
    unblocked: IntArray
    #: True, by job, for a job without a usable place that had not been placed yet.
    homeless: BoolArray
    #: By address: as `Occupancy.owner`.
    owner: IntArray
    #: By block: as `Occupancy.taken`.
    taken: IntArray
    #: By block: as `Occupancy.next_block`.
    next_block: IntArray
    #: By job: as `Occupancy.base`.
    base: IntArray
    #: By job: as `Occupancy.size`.
    size: IntArray
    #: By job: as `Occupancy.first_block`.
    first_block: IntArray
    #: By job: as `Occupancy.slack`.
    slack: FloatArray


@kernel
def _changed_rows(played: Played, script: Script, chosen: BoolArray) -> BoolArray:
    """True for every row whose plan, latest finish, or presence differs from the last forecast."""
    # Local names: a read through the tuple would count a reference up and down in every step of the loop.
    was_chosen = played.chosen
    old_time = played.time
    old_gpus = played.gpus
    old_length = played.length
    old_latest = played.latest
    time = script.plans.time
    gpus = script.plans.gpus
    length = script.plans.length
    latest = script.latest
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
def _merged(old: Events, changed: BoolArray, new: Events) -> tuple[Events, int]:
    """The old events with those of the ``changed`` rows replaced by the new ones, sorted by time and row.

    Returns (events, how many at the beginning equal the old ones).
    """
    old_time, old_row, old_gpus = old
    new_time, new_row, new_gpus = new
    time = np.empty(old_time.size + new_time.size)
    row_of = np.empty(time.size, dtype=np.int64)
    gpus = np.empty(time.size, dtype=np.int64)
    written = 0
    to_take = 0
    to_keep = 0
    while to_keep < old_time.size or to_take < new_time.size:
        if to_keep < old_time.size and changed[old_row[to_keep]]:
            to_keep += 1
            continue
        takes_new = to_keep == old_time.size
        if not takes_new and to_take < new_time.size:
            takes_new = (new_time[to_take], new_row[to_take]) < (old_time[to_keep], old_row[to_keep])
        if takes_new:
            time[written] = new_time[to_take]
            row_of[written] = new_row[to_take]
            gpus[written] = new_gpus[to_take]
            to_take += 1
        else:
            time[written] = old_time[to_keep]
            row_of[written] = old_row[to_keep]
            gpus[written] = old_gpus[to_keep]
            to_keep += 1
        written += 1
    same = 0
    while (
        same < min(written, old_time.size)
        and time[same] == old_time[same]
        and row_of[same] == old_row[same]
        and gpus[same] == old_gpus[same]
    ):
        same += 1
    return Events(time[:written], row_of[:written], gpus[:written]), same


@kernel
def _all_events(
    played: Played, plans: Plans, chosen: BoolArray, changed: BoolArray, origin: float
) -> tuple[Events, int]:
    """All events of the ``chosen`` rows, and how many at the beginning equal those of the last forecast."""
    new = planned_events(plans, np.flatnonzero(changed & chosen), played.seated, origin, YES)
    return _merged(played.events, changed, new)


@kernel
def _note_plans(played: Played, plans: Plans, changed: BoolArray) -> None:
    """Copy the plans of the changed rows to ``played``."""
    for row in range(changed.size):
        if changed[row]:
            count = plans.length[row]
            played.length[row] = count
            played.time[row, :count] = plans.time[row, :count]
            played.gpus[row, :count] = plans.gpus[row, :count]


@kernel
def _same_until(
    played: Played,
    changed: BoolArray,
    slack: FloatArray,
    move_seconds: FloatArray,
    row_of: IntArray,
    same: int,
) -> tuple[int, int]:
    """The numbers of events and of moves at the beginning that the new forecast is sure to repeat.

    ``same``: events at the beginning that are equal; ``row_of``: row of each event. The last of them may
    belong to the instant of the first event that differs, so it does not count.
    A changed row also influences other jobs before its own events differ: a place prefers to displace jobs
    that a move does not make late. The forecast therefore differs from the first event of a row for which
    that answer changed. After the first move of a changed row its whole plan matters.
    """
    told = np.zeros(changed.size, dtype=np.bool_)
    for row in range(changed.size):
        if changed[row]:
            told[row] = (played.slack[row] < move_seconds[row]) != (slack[row] < move_seconds[row])
            if told[row] and played.seated[row] > 0:
                return ZERO, ZERO
    events = max(ZERO, same - 1)
    for event in range(events):
        if told[row_of[event]]:
            events = event
            break
    moved = played.moves.job
    moves = ZERO
    while moves < moved.size and not changed[moved[moves]]:
        moves += 1
    return events, moves


@kernel
def _slack_of_changed(
    jobs: JobArrays, script: Script, chosen: BoolArray, changed: BoolArray, slack: FloatArray
) -> None:
    """Write the slack without charges of the changed rows to ``slack``; infinity for rows not chosen."""
    nothing = np.zeros(0)
    for row in range(changed.size):
        if changed[row]:
            slack[row] = np.inf
            if chosen[row]:
                finish, _ = charged_finish(jobs, script.plans, row, nothing, nothing)
                slack[row] = seconds_left(finish, script.latest[row])


@kernel
def _take_up(states: States, number: int, occupancy: Occupancy, moved: IntArray) -> BoolArray:
    """Bring a fresh occupancy into the kept state ``number``; returns a copy of its ``homeless``.

    ``moved``: rows that had moved before the state.
    """
    occupancy.owner[:] = states.owner[number]
    occupancy.taken[:] = states.taken[number]
    occupancy.next_block[:] = states.next_block[number]
    occupancy.base[:] = states.base[number]
    occupancy.size[:] = states.size[number]
    occupancy.first_block[:] = states.first_block[number]
    # The slack of all other rows follows from their present plans.
    for row in moved:
        occupancy.slack[row] = states.slack[number, row]
    homeless: BoolArray = states.homeless[number].copy()
    return homeless


@kernel
def _keep(states: States, number: int, occupancy: Occupancy, homeless: BoolArray) -> None:
    states.homeless[number] = homeless
    states.owner[number] = occupancy.owner
    states.taken[number] = occupancy.taken
    states.next_block[number] = occupancy.next_block
    states.base[number] = occupancy.base
    states.size[number] = occupancy.size
    states.first_block[number] = occupancy.first_block
    states.slack[number] = occupancy.slack


@kernel
def _end_of_instants(time: FloatArray, position: int, least: int) -> tuple[int, float]:
    """Find the instant that contains the event number ``least`` from ``position`` on.

    Returns (the position after the instant's last event, when the instant begins in seconds from now).
    """
    wanted = min(position + least, time.size)
    at = time[position]
    while position < wanted:
        at = time[position]
        while position < time.size and time[position] <= at + TIME_TOLERANCE:
            position += 1
    return position, at


class Resumption(NamedTuple):
    """Where a forecast resumes."""

    #: Position of the next event to play.
    position: int
    #: Number of blocked addresses that are free by then.
    unblocked: int
    #: Number of states kept so far.
    kept: int
    #: Number of events after which the next state is kept.
    between: int


@kernel
def _foresee_and_keep(
    stage: Stage,
    occupancy: Occupancy,
    script: Script,
    moves: Charges,
    events: Events,
    homeless: BoolArray,
    fixed: IntArray,
    states: States,
    resumption: Resumption,
) -> tuple[bool, Charges, int]:
    """`foresee_moves` from ``resumption`` on, after the ``moves`` found before it.

    Keeps states on the way while there is room. Returns (feasible, all moves, number of states kept).
    """
    position, unblocked, kept, between = resumption
    time, row_of, gpus = events
    blocked = stage.blocked
    blocked_until = stage.blocked_until
    while position < time.size:
        end = time.size
        at = time[position]
        if kept < states.position.size:
            end, at = _end_of_instants(time, position, between)
        feasible, moves = foresee_moves(
            Stage(stage.blocks, stage.jobs, stage.rank, blocked[unblocked:], blocked_until[unblocked:]),
            occupancy, script, moves, Events(time[position:end], row_of[position:end], gpus[position:end]),
            homeless, fixed if position == 0 else fixed[:0],
        )  # fmt: skip
        if not feasible:
            return False, moves, kept
        position = end
        if position < time.size:
            while unblocked < blocked.size and blocked_until[unblocked] <= at + TIME_TOLERANCE:
                unblocked += 1
            # The next call of `foresee_moves` numbers its passes from the beginning.
            occupancy.settled[:] = 0
            states.position[kept] = position
            states.moves[kept] = moves.job.size
            states.unblocked[kept] = unblocked
            _keep(states, kept, occupancy, homeless)
            kept += 1
    return True, moves, kept


class ForesightFromNow:
    """Forecasts the moves that plans force from the present placement on, for one set of plans after another.

    ``origin``: when the next slot begins, in seconds from now. The stage and the present placement must stay
    the same. ``spared``: number of events that the last forecast did not have to play.
    """

    def __init__(self, seating: Seating, stage: Stage, origin: float) -> None:
        self.spared = 0
        self._seating = seating
        self._stage = stage
        self._origin = origin
        self._asked = 0
        self._played: Played | None = None
        self._kept = 0

    def moves(self, script: Script, rows: IntArray) -> tuple[bool, Charges]:
        """(feasible, pauses of the jobs that must move) for the plans of ``rows``, which are ascending."""
        self.spared = 0
        self._asked += 1
        if self._asked > FROM_THE_BEGINNING:
            return self._resumed(script, rows)
        return foresee_from_present(self._stage, self._seating.seats, script, rows, self._origin)

    def _resumed(self, script: Script, rows: IntArray) -> tuple[bool, Charges]:
        """`moves`, played from the last kept state that is valid for these plans."""
        chosen = np.zeros(script.latest.size, dtype=np.bool_)
        chosen[rows] = True
        jobs = self._stage.jobs
        played = self._comparable(script.plans, chosen)
        changed = _changed_rows(played, script, chosen)
        slack = played.slack.copy()
        _slack_of_changed(jobs, script, chosen, changed, slack)
        occupancy = self._seating.fresh(slack)
        events, same = _all_events(played, script.plans, chosen, changed, self._origin)
        most_events, most_moves = _same_until(
            played, changed, slack, occupancy.move_seconds, events.row, same
        )
        number = self._last_state(most_events, most_moves)
        if number < 0:
            homeless = self._seating.enter(occupancy, rows)
            position = unblocked = count = 0
        else:
            position, count, unblocked = (int(column[number]) for column in self._states[:3])
            homeless = _take_up(self._states, number, occupancy, played.moves.job[:count])
        job, at, seconds = played.moves
        moves = Charges(job[:count], at[:count], seconds[:count])
        kept = _thinned(self._states, number + 1)
        room = self._states.position.size - kept
        to_play = without_last_ends(events)
        between = max(LEAST_BETWEEN, ceil((to_play.time.size - position) / (room + 1)))
        feasible, moves, self._kept = _foresee_and_keep(
            self._stage, occupancy, script, moves, to_play, homeless,
            fixed_at_first(jobs, rows, to_play, self._origin), self._states,
            Resumption(position, unblocked, kept, between),
        )  # fmt: skip
        self.spared = position
        _note_plans(played, script.plans, changed)
        self._played = played._replace(
            chosen=chosen, latest=script.latest, slack=slack, events=events, moves=moves
        )
        return feasible, moves

    def _comparable(self, plans: Plans, chosen: BoolArray) -> Played:
        """The last forecast, or an empty one if other jobs that hold GPUs took part in the last one."""
        present = self._seating.present
        played = self._played
        if played is None or ((played.chosen != chosen) & (present.jobs.gpus > 0)).any():
            self._kept = 0
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
        """The arrays for kept states."""
        present = self._seating.present
        return _no_states(present.blocks.block_of.size, present.blocks.base.size, present.jobs.work.size)

    def _last_state(self, most_events: int, most_moves: int) -> int:
        """Number of the last kept state with at most this many events and moves before it; -1 if none."""
        states, kept = self._states, self._kept
        holds = (states.position[:kept] <= most_events) & (states.moves[:kept] <= most_moves)
        return int(holds.sum()) - 1


def _nothing_played(plans: Plans, seated: IntArray) -> Played:
    """A forecast without any rows, with arrays large enough for ``plans``."""
    jobs = plans.length.size
    return Played(
        chosen=np.zeros(jobs, dtype=np.bool_),
        time=np.zeros(plans.time.shape),
        gpus=np.zeros(plans.gpus.shape, dtype=np.int64),
        length=np.zeros(jobs, dtype=np.int64),
        latest=np.zeros(jobs),
        slack=np.full(jobs, inf),
        seated=seated,
        events=Events(np.zeros(0), np.zeros(0, dtype=np.int64), np.zeros(0, dtype=np.int64)),
        moves=NO_CHARGES,
    )


def _no_states(addresses: int, blocks: int, jobs: int) -> States:
    """Empty arrays for the kept states of a cluster of this size."""
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


def _thinned(states: States, kept: int) -> int:
    """If the arrays are full, drop every second state, but not the last; returns how many are kept."""
    if kept < states.position.size:
        return kept
    left = np.arange(kept)[::-1][::2][::-1]
    for column in states:
        column[: left.size] = column[left]
    return int(left.size)
