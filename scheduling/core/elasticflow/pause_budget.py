"""The published pause, and the pause budget: whether promised plans survive all pauses.

A job makes no progress while its GPUs change. A plan includes the pauses of its own changes of level. It
does not know which jobs must move so that others can be placed (ElasticFlow 4.3). So the pause budget plays
all promised plans forward, places every change, and charges each forced move to the job that moves. A set of
plans is accepted only if every promise is still kept.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import inf, log2
from typing import NamedTuple

import numpy as np

from kernels.compiling import YES, kernel, leaf
from scheduling.core.elasticflow.minimum_satisfactory_share import ALL_LEVELS, NO_HEAD, Terms, fill
from scheduling.core.elasticflow.settling import LATE, Settled, settled_together
from scheduling.core.placement.foresight import Script, Stage, foresee_after
from scheduling.core.placement.occupancy import Occupancy
from scheduling.core.placement.repacking import Seating, Seats
from scheduling.core.placement.resumed_foresight import ForesightFromNow
from scheduling.core.plans.charging import NO_CHARGES, Charges, charge_and_find_late, slack_of
from scheduling.core.plans.ledger import ledger_of, left_by_others, replanned
from scheduling.core.plans.slots import Slots
from scheduling.core.plans.timeline import Timeline, free_until, occupied
from scheduling.core.problem.problem import Problem
from scheduling.core.problem.work import KEPT_CHANGE, MENDED_PIECE, PLANNED_CHANGE, Work
from scheduling.core.question.arrays import (
    BoolArray,
    Draft,
    JobArrays,
    Plans,
    copy_plans,
    new_draft,
    planned_gpus,
    set_plan,
)
from scheduling.core.question.snapshot import FloatArray, IntArray

BASE_SECONDS = 2.0
LARGE_CLUSTER_BASE_SECONDS = 7.0
SECONDS_PER_DOUBLING = 2.0
RESTART_SECONDS = 27.0
LARGE_CLUSTER_RESTART_SECONDS = 47.0
LARGE_CLUSTER_GPUS = 256
REPAIRS = 8
"""Rounds in which late plans are filled again, each time with room for the moves foreseen so far."""


def published_pause_seconds(
    gpus: int, *, cluster_gpus: int = 0, cached: bool = False, trainers_restart: bool = False
) -> float:
    """The published pause of a start on ``gpus`` GPUs, in seconds (ElasticFlow 5).

    ``cached``: a live communication group has exactly these GPUs. ``trainers_restart``: the trainer processes
    restart as well. Raises ValueError if ``gpus`` is less than 1.
    """
    if gpus < 1:
        raise ValueError("a pause belongs to a start on at least one GPU")
    large = cluster_gpus >= LARGE_CLUSTER_GPUS
    seconds = LARGE_CLUSTER_BASE_SECONDS if large else BASE_SECONDS
    if trainers_restart:
        seconds += LARGE_CLUSTER_RESTART_SECONDS if large else RESTART_SECONDS
    if not cached or trainers_restart:
        seconds += SECONDS_PER_DOUBLING * (log2(gpus) + 1)
    return seconds


class Mending(NamedTuple):
    """How late plans are filled again. Arrays are by row of the problem."""

    #: When the last iteration must end, in seconds from now.
    latest: FloatArray
    #: True for a new promise, which must leave the failure reserve free.
    new: BoolArray
    #: True for the suffix variant of filling, False for the uniform one.
    suffix: bool
    #: True if a job keeps the GPUs of its present plan in the next slot.
    keep_head: bool


@kernel
def _mend(
    jobs: JobArrays,
    plans: Plans,
    rows: IntArray,
    late: IntArray,
    carry: FloatArray,
    opened: Timeline,
    slots: Slots,
    mending: Mending,
) -> tuple[Plans, int]:
    """Fill the ``late`` jobs again, one after the other, each with room for its ``carry`` seconds of pauses.

    ``rows``: all promised rows, ascending; ``late``: some of them; ``carry``: one number per late job.
    Returns (plans, the number of jobs filled before the first failure).
    """
    ledger = ledger_of(plans, rows)
    for position in range(late.size):
        row = late[position]
        left, sure = left_by_others(opened, ledger, row)
        if not sure:
            left = occupied(opened, plans, rows[rows != row], YES)
        draft = new_draft(left.pieces + 8)
        pieces, finish, gpu_time = _refilled(jobs, plans, row, carry[position], left, slots, mending, draft)
        if pieces == 0:
            return plans, position
        plans = set_plan(plans, row, draft, pieces, finish, gpu_time)
        if position + 1 < late.size:
            ledger = replanned(ledger, plans, row)
    return plans, late.size


@leaf
def _refilled(
    jobs: JobArrays,
    plans: Plans,
    job: int,
    carry: float,
    left: Timeline,
    slots: Slots,
    mending: Mending,
    draft: Draft,
) -> tuple[int, float, float]:
    """Fill one job on ``left``, the free capacity beside all other promises; returns what `fill` returns."""
    head = NO_HEAD
    if mending.keep_head:
        head = planned_gpus(plans, job, slots.origin)
        # A stored plan may give GPUs back within the slot, and another plan may take them then.
        if not jobs.locked[job] and head > free_until(left, slots.origin + slots.seconds):
            return 0, inf, 0.0
    for guarded in (True, False):
        if guarded or not mending.new[job]:
            terms = Terms(guarded, mending.suffix, head, ALL_LEVELS, carry)
            pieces, finish, gpu_time = fill(jobs, job, mending.latest[job], left, slots, terms, draft)
            if pieces > 0:
                return pieces, finish, gpu_time
    return 0, inf, 0.0


class PauseBudget:
    """Tests whether a set of promised plans keeps all promises with the pauses of all forced moves.

    ``work`` counts the work of these tests.
    """

    def __init__(self, problem: Problem, seating: Seating) -> None:
        self.problem = problem
        self.seating = seating
        self.work = Work()
        count = problem.jobs.work.size
        self._rank_last = count - 1 - problem.by_deadline
        blocked, until = problem.blocked, problem.blocked_until
        if blocked.size:
            order = np.argsort(until, kind="stable")
            blocked, until = blocked[order], until[order]
        self._stage = Stage(problem.blocks, problem.jobs, problem.by_submission, blocked, until)
        self._from_now = ForesightFromNow(seating, self._stage, problem.origin)
        # A new promise leaves its failure slack and the failure reserve unused. A present one may use both.
        self._new = np.zeros(count, dtype=np.bool_)
        self._new_rows: list[int] = []
        self._kept = np.zeros(count)
        self.treat_as_new(problem.newcomers)

    def treat_as_new(self, rows: Sequence[int]) -> None:
        """Treat the promises of ``rows``, and no others, as new.

        A new promise leaves its failure slack and the failure reserve unused.
        """
        if rows == self._new_rows:
            return
        self._new_rows = list(rows)
        self._new[:] = False
        self._new[list(rows)] = True
        self._kept = np.where(self._new, self.problem.slack_seconds, 0.0)

    @property
    def _latest(self) -> FloatArray:
        """When the last iteration of each row must end, in seconds from now.

        Computed on each call, because a search for an offer changes the deadline of its row.
        """
        return self.problem.due - self._kept

    def slack(
        self, plans: Plans, promised: Sequence[int] | IntArray, charges: Charges = NO_CHARGES
    ) -> FloatArray:
        """Seconds, by row, that each promised job can lose beyond ``charges`` and still meet its deadline.

        Infinity for the other rows. ``charges``: the pauses of the next slot, all at one time.
        """
        rows = np.asarray(promised, dtype=np.int64)
        return slack_of(self.problem.jobs, plans, rows, self._latest, charges)

    def suspension_order(self, promised: Sequence[int] | IntArray) -> IntArray:
        """Order, by row, in which jobs are suspended to break a trade: jobs without a promise first, then
        the latest deadline."""
        suspension_order = self._rank_last.copy()
        suspension_order[np.asarray(promised, dtype=np.int64)] += suspension_order.size
        return suspension_order

    def affordable(
        self,
        plans: Plans,
        promised: Sequence[int],
        *,
        occupancy: Occupancy | None = None,
        charges: Charges = NO_CHARGES,
        only_mend: int | None = None,
    ) -> Plans | None:
        """The plans with all forced moves charged, or None if that breaks a promise.

        Without ``occupancy`` the forecast starts from the present placement and includes the next slot. With
        ``occupancy``, the placement of the next slot, it starts after that slot; ``charges`` are then the
        slot's pauses. A plan that a move makes late is filled again with room for the move. ``only_mend``:
        the only row whose plan may be filled again.
        """
        rows = np.array(sorted(promised), dtype=np.int64)
        if not self._moves_matter:
            # Moves cost nothing here. Yet a job that found no block for one slot may be late.
            return None if self._charge(plans, rows, NO_CHARGES) else plans
        plans = copy_plans(plans)
        carry: dict[int, float] = {}
        for _ in range(REPAIRS + 1):
            feasible, late, all_charges = self._foreseen(plans, rows, occupancy, charges)
            if not feasible:
                return None
            if not late:
                return plans
            if only_mend is not None and any(row != only_mend for row in late):
                return None
            for row in late:
                carry[row] = carry.get(row, 0.0) + _charged_to(row, all_charges)
            plans, mended = self._mended(plans, rows, late, carry, keep_head=occupancy is not None)
            if mended < len(late):
                return None
        return None

    def settled_together(self, plans: Plans, promised: Sequence[int]) -> Settled:
        """Place the next slot of the plans, all jobs at once, and charge all pauses; ``plans`` stay as they
        are.

        Of a LATE division no work is counted: `affordable` goes through it again.
        """
        problem = self.problem
        rows = np.array(sorted(promised), dtype=np.int64)
        found = settled_together(
            self._stage, self.seating.seats, Script(plans, self._latest, self.suspension_order(rows)), rows,
            problem.count, problem.origin, self._moves_matter,
        )  # fmt: skip
        if found.verdict != LATE:
            self.work.add(PLANNED_CHANGE * found.planned_changes)
        return found

    @property
    def _moves_matter(self) -> bool:
        """Whether moves cost time, or blocked GPUs can leave a change without a place."""
        return self.problem.has_pauses or bool(self.problem.blocked.size)

    def late_by_moves(self, plans: Plans, promised: Sequence[int]) -> tuple[bool, dict[int, float]]:
        """Whether all forced moves can be placed, and the seconds of pauses of each job that they make late.

        The forecast is that of `affordable` without ``occupancy``. No plan is filled again; the finish of
        each charged plan is updated.
        """
        if not self._moves_matter:
            return True, {}
        rows = np.array(sorted(promised), dtype=np.int64)
        feasible, late, charges = self._foreseen(plans, rows, None, NO_CHARGES)
        return feasible, {row: _charged_to(row, charges) for row in late}

    def charged(
        self, plans: Plans, promised: Sequence[int], *, occupancy: Occupancy, charges: Charges
    ) -> tuple[Plans, list[int]]:
        """The plans with all pauses charged, and the promised rows that end late.

        A late plan is filled again if a plan that is in time exists. ``occupancy`` and ``charges`` are those
        of `affordable`.
        """
        rows = np.array(sorted(promised), dtype=np.int64)
        plans = copy_plans(plans)
        _, late, all_charges = self._foreseen(plans, rows, occupancy, charges)
        while late:
            carry = {row: _charged_to(row, all_charges) for row in late}
            plans, mended = self._mended(plans, rows, late, carry, keep_head=True)
            late = late[mended + 1 :]
        late = self._charge(plans, rows, all_charges)
        return plans, [row for row in late if row < self.problem.count]

    def _mended(
        self, plans: Plans, rows: IntArray, late: list[int], carry: dict[int, float], *, keep_head: bool
    ) -> tuple[Plans, int]:
        """Fill the ``late`` rows, ascending, again with room for ``carry`` seconds of pauses.

        Returns (plans, the number of jobs filled before the first failure). Held offers are skipped.
        """
        problem = self.problem
        own = [row for row in late if row < problem.count]  # the plan of a held offer must not change
        self.work.add_beside(MENDED_PIECE * (1 + len(own)) * int(plans.length[rows].sum()))
        plans, mended = _mend(
            problem.jobs, plans, rows, np.array(own, dtype=np.int64), np.array([carry[row] for row in own]),
            problem.opened, problem.slots, Mending(self._latest, self._new, problem.suffix, keep_head),
        )  # fmt: skip
        return plans, mended

    def _charge(self, plans: Plans, rows: IntArray, charges: Charges) -> list[int]:
        """Update the finish of every charged plan; returns the rows that end late."""
        late: list[int] = charge_and_find_late(self.problem.jobs, plans, rows, self._latest, charges).tolist()
        return late

    def _foreseen(
        self, plans: Plans, rows: IntArray, occupancy: Occupancy | None, charges: Charges
    ) -> tuple[bool, list[int], Charges]:
        """Whether all forced moves can be placed, the rows that they make late, and all charges.

        The finish of every charged plan is updated. If the moves cannot be placed, it is updated only with
        an ``occupancy``.
        """
        self.work.add(PLANNED_CHANGE * int(plans.length[rows].sum()))
        script = Script(plans, self._latest, self.suspension_order(rows))
        if occupancy is not None:
            feasible, charges, late = _charged_after(
                self._stage, self.seating.seats, occupancy, script, rows, charges, self.problem.origin
            )
            return feasible, late.tolist(), charges
        feasible, charges = self._from_now.moves(script, rows)
        self.work.spare((PLANNED_CHANGE - KEPT_CHANGE) * self._from_now.spared)
        return feasible, self._charge(plans, rows, charges) if feasible else [], charges


@kernel
def _charged_after(
    stage: Stage,
    seats: Seats,
    occupancy: Occupancy,
    script: Script,
    rows: IntArray,
    charges: Charges,
    origin: float,
) -> tuple[bool, Charges, IntArray]:
    """`foresee_after`, and the rows of ``rows`` that end late with all charges."""
    feasible, charges = foresee_after(stage, seats, occupancy, script, rows, charges, origin)
    return feasible, charges, charge_and_find_late(stage.jobs, script.plans, rows, script.latest, charges)


def _charged_to(row: int, charges: Charges) -> float:
    """Sum of the seconds charged to one row."""
    return float(charges.seconds[charges.job == row].sum())
