"""The promises of one decision with the plans that keep them, and how plans are filled beside them."""

from __future__ import annotations

from functools import cached_property

import numpy as np

from kernels.compiling import YES
from scheduling.core.elasticflow.deadline_order import DeadlineOrder, refill_beside
from scheduling.core.elasticflow.minimum_satisfactory_share import Terms, fill
from scheduling.core.plans.timeline import TAKE, Timeline, occupied, occupy
from scheduling.core.problem.problem import Problem
from scheduling.core.problem.work import Work
from scheduling.core.question.arrays import Plans, changed_beside, copy_plans, keep_plan
from scheduling.core.question.snapshot import FloatArray, IntArray

NO_JOBS = np.zeros(0, dtype=np.int64)


class PromisedPlans:
    """``rows``: promised rows of the problem, held offers included. ``plans``: jointly feasible plans of
    ``rows``. ``work``: counts the work of the decision and limits it.
    """

    def __init__(self, problem: Problem, work: Work) -> None:
        self.problem = problem
        self.work = work
        self.plans = copy_plans(problem.stored)
        self.rows = list(problem.promised)
        self.offers = np.arange(problem.count, problem.jobs.work.size)
        self._free_beside: tuple[Plans, int, Timeline] | None = None
        self._deadline_orders: dict[bool, DeadlineOrder] = {}

    def in_deadline_order(self, rows: list[int]) -> list[int]:
        """Rows in the order of Algorithm 1: deadline, submission, id."""
        if len(rows) < 2:
            return list(rows)
        ordered: list[int] = self._in_deadline_order(np.array(rows, dtype=np.int64)).tolist()
        return ordered

    def _in_deadline_order(self, rows: IntArray) -> IntArray:
        ordered: IntArray = rows[self.problem.by_deadline[rows].argsort()]
        return ordered

    def add(self, plans: Plans, row: int) -> None:
        """Add a job to the promises; ``plans`` keep all of them."""
        beside = self._free_beside
        known = beside is not None and beside[0] is self.plans and beside[1] == len(self.rows)
        if beside is not None and known and not changed_beside(self.plans, plans, row):
            left = occupy(beside[2], plans, row, TAKE, YES)
            self._free_beside = (plans, len(self.rows) + 1, left)
        self.plans = plans
        self.rows.append(row)

    def own_rows(self) -> list[int]:
        """The promised rows without held offers."""
        if not self.offers.size:
            return list(self.rows)
        return [row for row in self.rows if row < self.problem.count]

    def deadline_order(self, *, suffix: bool) -> DeadlineOrder:
        """All promises filled from scratch in deadline order, without a newcomer's."""
        if suffix not in self._deadline_orders:
            self._deadline_orders[suffix] = DeadlineOrder(
                self.problem, self.plans, self.opened_beside_offers, self.work, suffix=suffix
            )
        return self._deadline_orders[suffix]

    @cached_property
    def opened_beside_offers(self) -> Timeline:
        """What held offers leave free; not to be changed. Their plans stay what was offered."""
        opened = self.problem.opened
        return occupied(opened, self.plans, self.offers, YES) if self.offers.size else opened

    def free_beside_promises(self) -> Timeline:
        """Free capacity beside the present plans of all promises; cached, so callers must not change it."""
        kept = self._free_beside
        if kept is None or kept[0] is not self.plans or kept[1] != len(self.rows):
            kept = self._free_beside = (self.plans, len(self.rows), self.timeline(self.rows))
        return kept[2]

    def timeline(self, rows: list[int], plans: Plans | None = None) -> Timeline:
        """Free capacity beside the plans of ``rows``; ``plans`` defaults to the present ones."""
        problem = self.problem
        chosen = np.array(rows, dtype=np.int64)
        kept = self.plans if plans is None else plans
        timeline = occupied(problem.opened, kept, chosen, YES)
        self.work.add(chosen.size + timeline.pieces)
        return timeline

    def filled_in_order(
        self, order: list[int], carry: FloatArray, *, suffix: bool
    ) -> tuple[Plans, int | None]:
        """Fill the jobs of ``order`` from scratch, in that order, as new promises; stop at the first failure.

        ``carry``: extra seconds of pauses that each plan must absorb, by row. Returns (plans, the row that
        cannot meet its deadline or None).
        """
        plans, failing = self._refilled(
            np.array(order, dtype=np.int64), self.problem.due - self.problem.slack_seconds, carry, True,
            suffix, False,
        )  # fmt: skip
        return plans, int(failing[0]) if failing.size else None

    def _refilled(
        self,
        order: IntArray,
        due: FloatArray,
        carry: FloatArray,
        guarded: bool,
        suffix: bool,
        to_the_end: bool,
    ) -> tuple[Plans, IntArray]:
        problem = self.problem
        plans, failing, pieces_passed = refill_beside(
            problem.jobs, due, self.plans, order, carry, self.opened_beside_offers, problem.slots,
            Terms(guarded, suffix), to_the_end,
        )  # fmt: skip
        (self.work.add if suffix else self.work.add_passed)(pieces_passed)
        return plans, failing

    def refilled(self, rows: list[int], *, promising: bool = False) -> tuple[Plans, list[int]]:
        """Fill all jobs of ``rows`` from scratch in deadline order.

        ``promising``: every job keeps its failure slack and leaves the failure reserve free, as a new promise
        must. Otherwise a second try, if the first fails, may use both. Returns (plans, rows that fail, in
        deadline order).
        """
        problem = self.problem
        chosen = np.array(rows, dtype=np.int64)
        order = self._in_deadline_order(chosen[chosen < problem.count] if self.offers.size else chosen)
        reserve = problem.promise_gpus < problem.gpus or bool((problem.slack_seconds > 0).any())
        plans, failed = self.plans, NO_JOBS
        for careful in (True, False) if reserve and not promising else (True,):
            due = problem.due - problem.slack_seconds if careful else problem.due
            plans, failed = self._refilled(
                order, due, np.zeros(problem.jobs.work.size), careful, problem.suffix, True
            )
            if not failed.size:
                break
        return plans, failed.tolist()

    def fill_one(
        self,
        row: int,
        due: float,
        timeline: Timeline,
        *,
        guarded: bool,
        suffix: bool | None = None,
    ) -> bool:
        """Fill one job on ``timeline`` and store its plan; False if it cannot end by ``due``.

        ``guarded``: leave the failure reserve free, as a new promise must.
        """
        problem = self.problem
        backwards = problem.suffix if suffix is None else suffix
        self.work.add(timeline.pieces)
        draft = problem.scratch(timeline.pieces)
        terms = Terms(guarded, backwards)
        pieces, finish, gpu_time = fill(problem.jobs, row, due, timeline, problem.slots, terms, draft)
        if pieces:
            self.plans = keep_plan(self.plans, row, draft, pieces, finish, gpu_time)
        return bool(pieces)
