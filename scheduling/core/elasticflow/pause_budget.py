"""The published pause of a change, and the pause budget: whether promised plans can pay for all (contracts
4).

A job whose GPUs change makes no progress for a while. Plans carry the pauses of their own changes
of level; what they cannot know is which jobs must move so that others can be placed. Promised
plans are therefore played forward, placement included, and charged for the moves that turn up.
A set of plans counts only if every promise survives that.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf, log2

import numpy as np

from scheduling.core.elasticflow.minimum_satisfactory_share import ALL_LEVELS, NO_HEAD, Terms, fill
from scheduling.core.kernels import NO, YES, kernel
from scheduling.core.placement.foresight import foresee_planned_moves, promised_part
from scheduling.core.placement.occupancy import Occupancy
from scheduling.core.placement.repacking import Seating
from scheduling.core.placement.resumed_foresight import ForesightFromNow
from scheduling.core.plans.charging import charged_finish, grouped_by_job
from scheduling.core.plans.timeline import free_until, occupy_all
from scheduling.core.problem.problem import Problem
from scheduling.core.problem.work import KEPT_CHANGE, PLANNED_CHANGE, Work
from scheduling.core.question.arrays import (
    TIME_TOLERANCE,
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
REPAIRS = 3


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


@dataclass(frozen=True)
class Charges:
    """Pauses beyond those of a plan's own level changes: job, time (since now), seconds."""

    job: IntArray
    time: FloatArray
    seconds: FloatArray

    def and_then(self, job: Sequence[int], time: Sequence[float], seconds: Sequence[float]) -> Charges:
        """These charges and later ones."""
        if not len(job):
            return self
        return Charges(
            np.concatenate((self.job, np.array(job, dtype=np.int64))),
            np.concatenate((self.time, np.array(time, dtype=np.float64))),
            np.concatenate((self.seconds, np.array(seconds, dtype=np.float64))),
        )


NO_CHARGES = Charges(np.zeros(0, dtype=np.int64), np.zeros(0), np.zeros(0))


@kernel
def charge_plans(jobs, plans, rows, charge_job, charge_time, charge_seconds):  # type: ignore[no-untyped-def]
    """Set finish and GPU time of the plans of ``rows`` under charges that are sorted by time."""
    order, offsets = grouped_by_job(charge_job, plans.length.size)
    time = charge_time[order]
    seconds = charge_seconds[order]
    for row in rows:
        low = offsets[row]
        high = offsets[row + 1]
        plans.finish[row], plans.gpu_time[row] = charged_finish(
            jobs, plans, row, time[low:high], seconds[low:high]
        )


@kernel
def slack_of(jobs, plans, rows, latest, charge_job, charge_time, charge_seconds):  # type: ignore[no-untyped-def]
    """Seconds, per row, between the end under the charges and ``latest``; infinity beside ``rows``."""
    slack = np.full(latest.size, inf)
    order, offsets = grouped_by_job(charge_job, latest.size)
    time = charge_time[order]
    seconds = charge_seconds[order]
    for row in rows:
        low = offsets[row]
        high = offsets[row + 1]
        finish, _ = charged_finish(jobs, plans, row, time[low:high], seconds[low:high])
        slack[row] = latest[row] - finish
    return slack


@kernel
def charge_and_find_late(  # type: ignore[no-untyped-def]
    jobs, plans, rows, latest, charge_job, charge_time, charge_seconds
):  # fmt: skip
    """Charge the plans of ``rows`` that are charged at all; returns those of ``rows`` that end after
    ``latest``."""
    order = np.argsort(charge_time, kind="mergesort")
    charged = np.zeros(latest.size, dtype=np.bool_)
    for job in charge_job:
        charged[job] = True
    charge_plans(
        jobs, plans, rows[charged[rows]], charge_job[order], charge_time[order], charge_seconds[order]
    )
    late = np.zeros(rows.size, dtype=np.bool_)
    for position in range(rows.size):
        late[position] = plans.finish[rows[position]] > latest[rows[position]] + 2 * TIME_TOLERANCE
    return rows[late]


@kernel
def _refill_with_carry(  # type: ignore[no-untyped-def]
    jobs, plans, job, others, due, timeline, guarded, slots, keep_head, suffix, carry
):  # fmt: skip
    """Plan one job anew beside the plans of ``others`` so that it can absorb ``carry`` seconds."""
    timeline = occupy_all(timeline, plans, others, YES)
    head = planned_gpus(plans, job, slots.origin) if keep_head else NO_HEAD
    # A stored plan may give GPUs back within the slot, and another count on them.
    if keep_head and not jobs.locked[job] and head > free_until(timeline, slots.origin + slots.seconds):
        return plans, False
    draft = new_draft(timeline.pieces + 8)
    terms = Terms(guarded, suffix, head, ALL_LEVELS, carry)
    pieces, finish, gpu_time = fill(jobs, job, due, timeline, slots, terms, draft)
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
        self._unblocking = (problem.blocked[order], problem.blocked_until[order])
        self._from_now = ForesightFromNow(seating, problem.origin, *self._unblocking)
        # New promises keep their slack and the reserve whole; present ones may live on both.
        self._new = np.zeros(count, dtype=np.bool_)
        self.treat_as_new(problem.newcomers)

    def treat_as_new(self, rows: Sequence[int]) -> None:
        """Let these jobs, and no others, keep their slack for failures and the reserve whole."""
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
        slack: FloatArray = slack_of(
            self.problem.jobs, plans, np.asarray(promised, dtype=np.int64), self._latest, charges.job,
            charges.time,
            charges.seconds,
        )  # fmt: skip
        return slack

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
        if not problem.has_pauses() and not problem.blocked.size:
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
        if not self.problem.has_pauses() and not self.problem.blocked.size:
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
            mended: Plans
            mended, fits = _refill_with_carry(
                problem.jobs, plans, row, rows[rows != row], self._latest[row], problem.open_timeline(),
                guarded, problem.slots, keep_head, problem.suffix, carry,
            )  # fmt: skip
            if fits:
                return mended
        return None

    def _charge(self, plans: Plans, rows: IntArray, charges: Charges) -> list[int]:
        """Set the charged finish of every job that is charged; returns the jobs that are late."""
        late: list[int] = charge_and_find_late(
            self.problem.jobs, plans, rows, self._latest, charges.job, charges.time, charges.seconds
        ).tolist()
        return late

    def _forecast(
        self, plans: Plans, rows: IntArray, occupancy: Occupancy | None, charges: Charges
    ) -> tuple[bool, Charges]:
        self.work.add(PLANNED_CHANGE * int(plans.length[rows].sum()))
        if occupancy is None:
            found = self._from_now.moves(plans, rows, self._latest, self.reluctance(rows))
            self.work.spare((PLANNED_CHANGE - KEPT_CHANGE) * self._from_now.spared)
            return found[0], Charges(*found[1:])
        start = promised_part(self.problem.blocks, occupancy, self.problem.blocked, rows)
        self.seating.note_slack(start, self.slack(plans, rows, charges))
        feasible, job, at, seconds = foresee_planned_moves(
            self.problem.blocks,
            start,
            self.problem.jobs,
            plans,
            self._latest,
            charges.job,
            charges.time,
            charges.seconds,
            rows,
            self.problem.origin,
            NO,
            np.zeros(plans.length.size, dtype=np.bool_),
            self.problem.by_submission,
            self.reluctance(rows),
            *self._unblocking,
            rows[:0],
        )
        return feasible, Charges(job, at, seconds)
