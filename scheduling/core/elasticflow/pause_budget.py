"""The published pause of a change, and the pause budget: whether promised plans can pay for all (contracts
4).

A job whose GPUs change makes no progress for a while. Plans carry the pauses of their own changes
of level; what they cannot know is which jobs must move so that others can be placed. Promised
plans are therefore played forward, placement included, and charged for the moves that turn up.
A set of plans counts only if every promise survives that.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import log2

import numpy as np

from scheduling.core.elasticflow.minimum_satisfactory_share import NO_HEAD, Terms, fill
from scheduling.core.kernels import NO, YES, kernel
from scheduling.core.placement.foresight import (
    Script,
    Stage,
    foresee_moves,
    planned_events,
    promised_part,
    without_last_ends,
)
from scheduling.core.placement.occupancy import Occupancy
from scheduling.core.placement.repacking import Seating
from scheduling.core.placement.resumed_foresight import ForesightFromNow
from scheduling.core.plans.charging import NO_CHARGES, Charges, charge_and_find_late, slack_of
from scheduling.core.plans.slots import Slots
from scheduling.core.plans.timeline import Timeline, free_until, occupy_all
from scheduling.core.problem.problem import Problem
from scheduling.core.problem.work import KEPT_CHANGE, MENDED_PIECE, PLANNED_CHANGE, Work
from scheduling.core.question.arrays import (
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
"""Rounds of mending plans that moves make late, each with room for just the moves that were foreseen."""


def published_pause_seconds(
    gpus: int, *, cluster_gpus: int = 0, cached: bool = False, trainers_restart: bool = False
) -> float:
    """The published pause of a start on ``gpus`` GPUs, in seconds (spec 2.10).

    ``cached``: a live communication group has exactly these GPUs. Raises ValueError for no GPU.
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


@kernel
def _refill_with_carry(
    jobs: JobArrays,
    plans: Plans,
    job: int,
    others: IntArray,
    due: float,
    timeline: Timeline,
    slots: Slots,
    terms: Terms,
    keep_head: bool,
) -> tuple[Plans, bool]:
    """Plan one job anew beside the plans of ``others``; whether that succeeds.

    ``keep_head``: with the GPUs that it is planned on in the next slot.
    """
    timeline = occupy_all(timeline, plans, others, YES)
    head = planned_gpus(plans, job, slots.origin) if keep_head else NO_HEAD
    # A stored plan may give GPUs back within the slot, and another count on them.
    if keep_head and not jobs.locked[job] and head > free_until(timeline, slots.origin + slots.seconds):
        return plans, False
    draft = new_draft(timeline.pieces + 8)
    with_head = Terms(terms.guarded, terms.suffix, head, terms.highest, terms.carry)
    pieces, finish, gpu_time = fill(jobs, job, due, timeline, slots, with_head, draft)
    if pieces == 0:
        return plans, False
    return set_plan(plans, job, draft, pieces, finish, gpu_time), True


class PauseBudget:
    """Tests sets of promised plans against the moves that their placement will need."""

    def __init__(self, problem: Problem, seating: Seating) -> None:
        self.problem = problem
        self.seating = seating
        self.work = Work()
        count = problem.jobs.work.size
        self._rank_last = count - 1 - problem.by_deadline
        order = np.argsort(problem.blocked_until, kind="stable")
        self._stage = Stage(
            problem.blocks, problem.jobs, problem.by_submission, problem.blocked[order],
            problem.blocked_until[order],
        )  # fmt: skip
        self._from_now = ForesightFromNow(seating, self._stage, problem.origin)
        # New promises keep their slack and the reserve whole; present ones may live on both.
        self._new = np.zeros(count, dtype=np.bool_)
        self._new_rows: list[int] = []
        self._kept = np.zeros(count)
        self.treat_as_new(problem.newcomers)

    def treat_as_new(self, rows: Sequence[int]) -> None:
        """Let these jobs, and no others, keep their slack for failures and the reserve whole."""
        if rows == self._new_rows:
            return
        self._new_rows = list(rows)
        self._new[:] = False
        self._new[list(rows)] = True
        self._kept = np.where(self._new, self.problem.slack_seconds, 0.0)

    @property
    def _latest(self) -> FloatArray:
        """When the last iteration of each job must end. Read afresh: a search for an offer moves its
        deadline."""
        return self.problem.due - self._kept

    def slack(
        self, plans: Plans, promised: Sequence[int] | IntArray, charges: Charges = NO_CHARGES
    ) -> FloatArray:
        """How long each promised job can be held up beyond ``charges``, in seconds; infinity for the others.

        The charges are those of the next slot: all at one time.
        """
        rows = np.asarray(promised, dtype=np.int64)
        return slack_of(self.problem.jobs, plans, rows, self._latest, charges)

    def reluctance(self, promised: Sequence[int] | IntArray) -> IntArray:
        """Who is suspended first in a trade: best effort, then the latest deadline."""
        reluctance = self._rank_last.copy()
        reluctance[np.asarray(promised, dtype=np.int64)] += reluctance.size
        return reluctance

    def affordable(
        self,
        plans: Plans,
        promised: Sequence[int],
        *,
        occupancy: Occupancy | None = None,
        charges: Charges = NO_CHARGES,
        only_mend: int | None = None,
    ) -> Plans | None:
        """The plans with all forced moves charged, or None where that breaks a promise.

        Without ``occupancy`` the forecast starts from the present placement and includes the next
        slot; with it, from there, the next slot being placed already (its pauses are ``charges``).
        Plans that a move would make late are planned anew with room for it where that is possible
        (``only_mend``: for that job alone).
        """
        problem = self.problem
        rows = np.array(sorted(promised), dtype=np.int64)
        if not problem.has_pauses and not problem.blocked.size:
            # Moves cost nothing, and yet a job that found no block for a slot may be late by that.
            return None if self._charge(plans, rows, NO_CHARGES) else plans
        plans = copy_plans(plans)
        carry = np.zeros(problem.jobs.work.size)
        for _ in range(REPAIRS + 1):
            feasible, all_charges = self._forecast(plans, rows, occupancy, charges)
            if not feasible:
                return None
            late = self._charge(plans, rows, all_charges)
            if not late:
                return plans
            for row in late:
                if only_mend is not None and row != only_mend:
                    return None
                carry[row] += float(all_charges.seconds[all_charges.job == row].sum())
                mended = self._mended(plans, rows, row, carry[row], keep_head=occupancy is not None)
                if mended is None:
                    return None
                plans = mended
        return None

    def late_by_moves(self, plans: Plans, promised: Sequence[int]) -> tuple[bool, dict[int, float]]:
        """Whether all forced moves can be placed, and the pauses in seconds of the jobs that they make late.

        As in `affordable` without ``occupancy``; nothing is mended. The plans' finish is set as charged.
        """
        if not self.problem.has_pauses and not self.problem.blocked.size:
            return True, {}
        rows = np.array(sorted(promised), dtype=np.int64)
        feasible, charges = self._forecast(plans, rows, None, NO_CHARGES)
        late = self._charge(plans, rows, charges) if feasible else []
        return feasible, {row: float(charges.seconds[charges.job == row].sum()) for row in late}

    def charged(
        self, plans: Plans, promised: Sequence[int], *, occupancy: Occupancy, charges: Charges
    ) -> tuple[Plans, list[int]]:
        """The plans with all pauses charged, and the promised jobs that are late by that.

        Late jobs are planned anew where that saves them.
        """
        rows = np.array(sorted(promised), dtype=np.int64)
        plans = copy_plans(plans)
        _, all_charges = self._forecast(plans, rows, occupancy, charges)
        for row in self._charge(plans, rows, all_charges):
            carry = float(all_charges.seconds[all_charges.job == row].sum())
            mended = self._mended(plans, rows, row, carry, keep_head=True)
            plans = plans if mended is None else mended
        late = self._charge(plans, rows, all_charges)
        return plans, [row for row in late if row < self.problem.count]

    def _mended(
        self, plans: Plans, rows: IntArray, row: int, carry: float, *, keep_head: bool
    ) -> Plans | None:
        """One promised job planned anew with room for ``carry`` seconds of pauses, or None."""
        problem = self.problem
        if row >= problem.count:
            return None  # a held offer's plan is what was offered
        for guarded in (True,) if self._new[row] else (True, False):
            terms = Terms(guarded, problem.suffix, carry=carry)
            self.work.add_beside(MENDED_PIECE * int(plans.length[rows].sum()))
            mended, fits = _refill_with_carry(
                problem.jobs, plans, row, rows[rows != row], self._latest[row], problem.open_timeline(),
                problem.slots, terms, keep_head,
            )  # fmt: skip
            if fits:
                return mended
        return None

    def _charge(self, plans: Plans, rows: IntArray, charges: Charges) -> list[int]:
        """Set the charged finish of every job that is charged; returns the jobs that are late."""
        late: list[int] = charge_and_find_late(self.problem.jobs, plans, rows, self._latest, charges).tolist()
        return late

    def _forecast(
        self, plans: Plans, rows: IntArray, occupancy: Occupancy | None, charges: Charges
    ) -> tuple[bool, Charges]:
        self.work.add(PLANNED_CHANGE * int(plans.length[rows].sum()))
        if occupancy is None:
            found = self._from_now.moves(Script(plans, self._latest, self.reluctance(rows)), rows)
            self.work.spare((PLANNED_CHANGE - KEPT_CHANGE) * self._from_now.spared)
            return found
        events = without_last_ends(planned_events(plans, rows, occupancy.size, self.problem.origin, NO))
        if not events.time.size:
            return True, charges
        start = promised_part(self.problem.blocks, occupancy, self.problem.blocked, rows)
        self.seating.note_slack(start, self.slack(plans, rows, charges))
        script = Script(plans, self._latest, self.reluctance(rows))
        seated = np.zeros(plans.length.size, dtype=np.bool_)
        return foresee_moves(self._stage, start, script, charges, events, seated, rows[:0])
