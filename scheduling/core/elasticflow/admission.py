"""Admission control: Algorithm 1 of ElasticFlow (section 4.1; spec 2.5 and 2.5.1).

Admission promises a newcomer its deadline when one set of plans keeps all promises, the new one included.
Stored plans carry the guarantee. Filling all jobs from scratch is a heuristic: it may fail while the stored
plans still keep every promise.
"""

from __future__ import annotations

from functools import cached_property

import numpy as np

from scheduling.core.elasticflow.alone import impossible, peak_gpus_alone
from scheduling.core.elasticflow.bid_prices import BidPrices
from scheduling.core.elasticflow.deadline_order import DeadlineOrder, refill_beside
from scheduling.core.elasticflow.early_refusal import GpuTimeNeeded
from scheduling.core.elasticflow.jobs_at_risk import JobsAtRisk
from scheduling.core.elasticflow.minimum_satisfactory_share import Terms, fill
from scheduling.core.elasticflow.pause_budget import PauseBudget
from scheduling.core.elasticflow.search_limits import SearchLimits
from scheduling.core.elasticflow.wider_search import planned_anew, searched
from scheduling.core.kernels import YES
from scheduling.core.plans.charging import NO_CHARGES, charge_plans
from scheduling.core.plans.stored_plans import stored_plans_keep
from scheduling.core.plans.timeline import TAKE, Timeline, occupied, occupy, overbooked
from scheduling.core.problem import reasons
from scheduling.core.problem.problem import Problem
from scheduling.core.problem.reasons import KeptRoom
from scheduling.core.problem.work import NEWCOMER, Work
from scheduling.core.question.arrays import (
    TIME_TOLERANCE,
    Plans,
    changed_beside,
    copy_plans,
    rows_where,
    set_plan,
)
from scheduling.core.question.columns import BEST_EFFORT, SOFT
from scheduling.core.question.decision import ReasonCode, Verdict
from scheduling.core.question.snapshot import AdmissionRule, FloatArray, IntArray

SEVERAL = 8
"""With at least this many newcomers in one decision, the early test of GPU time saves more than it costs."""
NO_JOBS = np.zeros(0, dtype=np.int64)


class Admission:
    """The promises of one decision, and the plans that keep them.

    ``rows``: promised rows of the problem, held offers included. ``plans``: jointly feasible plans of
    ``rows``. ``at_risk``: rows whose promise no plan keeps. ``used_stored``: True when stored plans replaced
    a refill that failed. ``search``: how far admission looks before it refuses a newcomer; None runs the
    published algorithm alone. With a search, newcomers leave jobs at risk the GPUs to end soon (decision
    0016). ``as_planned``: present plans that keep their promises stay unchanged. ``work``: counts the work
    of the decision and limits it; newcomers beyond the limit wait for the next decision (decision 0024).
    """

    needs_of = GpuTimeNeeded

    def __init__(
        self,
        problem: Problem,
        budget: PauseBudget,
        *,
        search: SearchLimits | None = None,
        as_planned: bool = False,
        work: Work | None = None,
    ) -> None:
        self.problem = problem
        self.budget = budget
        self.search = search
        self.work = budget.work = work or Work()
        self.at_risk: list[int] = []
        self.used_stored = False
        self.plans = copy_plans(problem.stored)
        self.rows = list(problem.promised)
        self.offers = np.arange(problem.count, problem.jobs.work.size)
        self.jobs_at_risk = JobsAtRisk(self)
        self.bid_prices = BidPrices(self)
        self._needed: GpuTimeNeeded | None = None
        self._free_beside: tuple[Plans, int, Timeline] | None = None
        self._tested_for_moves: Plans | None = None
        self._deadline_orders: dict[bool, DeadlineOrder] = {}
        self._establish()
        columns = problem.columns
        self._retest(rows_where(columns.at_risk & ~columns.newcomer).tolist())
        if not as_planned and self.jobs_at_risk.make_room():
            self._retest(self.at_risk)

    # Present promises ----------------------------------------------------------------------

    def _establish(self) -> None:
        """Find plans that keep the present promises; a job that no plan keeps in time is at risk."""
        if not self.rows:
            return
        late = self._late_under_stored_plans() if self.problem.settings.stored_plans else None
        if late == []:
            return
        afresh, failed = self.refilled(self.rows)
        if late is None or len(failed) < len(late):
            self.plans, self.at_risk = afresh, failed
        else:
            self.at_risk = late
        lost = set(self.at_risk)
        self.rows = [row for row in self.rows if row not in lost]

    def _late_under_stored_plans(self) -> list[int] | None:
        """Rows that end late under the stored plans, after late plans were filled again where possible.

        None when the stored plans take more GPUs than there are.
        """
        problem = self.problem
        overdue, too_many = stored_plans_keep(
            problem.jobs, self.plans, np.array(self.rows, dtype=np.int64), problem.count, problem.due,
            problem.opened,
        )  # fmt: skip
        if too_many:
            return None
        late = self.in_deadline_order(overdue.tolist())
        if not late:
            return late
        lost = set(late)
        timeline = self.timeline([row for row in self.rows if row not in lost])
        for row in list(late):
            if self._fill_one(row, float(problem.due[row]), timeline, guarded=False):
                timeline = occupy(timeline, self.plans, row, TAKE, YES)
                late.remove(row)
        return late

    def _retest(self, rows: list[int]) -> None:
        """Renew the promise of each job at risk whose deadline can be met again (spec 2.12)."""
        for row in self.in_deadline_order(rows):
            before = copy_plans(self.plans)
            if self._fill_one(row, float(self.problem.due[row]), self.timeline(self.rows), guarded=True):
                affordable = self.budget.affordable(self.plans, [*self.rows, row])
                if affordable is not None:
                    self.plans = affordable
                    self.rows.append(row)
                    self.at_risk = [other for other in self.at_risk if other != row]
                    continue
            self.plans = before
            if row not in self.at_risk:
                self.at_risk.append(row)

    # Newcomers -----------------------------------------------------------------------------

    def decide_newcomers(self) -> list[Verdict]:
        """Decide the newcomers; return the verdicts in submission order.

        Afterwards the plans keep every promise made. Newcomers are decided one by one, except under the batch
        rule when no job at risk is spared and no bid price is asked. One by one, the first newcomer always
        gets a verdict; once the limit of work is spent, the others get none.
        """
        together = not (self.bid_prices.asked or self.jobs_at_risk.rows())
        if self.problem.settings.admission is AdmissionRule.BATCH and together:
            return self._decide_batch(self.problem.newcomers)
        verdicts: list[Verdict] = []
        for row in self.problem.newcomers:
            if verdicts and self.work.is_spent():
                break
            # A newcomer that was promised a moment ago counts as a present promise, as in the next decision.
            self.budget.treat_as_new([row])
            verdicts.append(self.decide(row))
        self.budget.treat_as_new(self.problem.newcomers)
        return verdicts

    def decide(self, row: int) -> Verdict:
        """The verdict on one newcomer.

        A promise changes the plans. So may a refusal, but only if forced moves broke the plans before it.
        """
        self.work.add(NEWCOMER)
        verdict = impossible(self.problem, row, self._facts(row))
        if verdict is None and self.problem.columns.service_class[row] == BEST_EFFORT:
            return reasons.best_effort(self._facts(row))
        if verdict is None and (kept := self.bid_prices.room_kept_from(row)):
            verdict = reasons.room_kept(self._facts(row), self.problem.now, kept)
        if verdict is None:
            plans, first_failing, outbid = self._fitting(row)
            if plans is not None:
                self._promise(plans, row)
                return reasons.fits(self._facts(row), self.problem.stored_plan(plans, row))
            verdict = self._refusal(row, first_failing)
            if outbid is not None:
                verdict = reasons.no_room_made(verdict, outbid)
        return self._or_unpromised(row, verdict)

    def _promise(self, plans: Plans, row: int) -> None:
        """Add the newcomer to the promises; ``plans`` keep all of them."""
        beside = self._free_beside
        known = beside is not None and beside[0] is self.plans and beside[1] == len(self.rows)
        if beside is not None and known and not changed_beside(self.plans, plans, row):
            left = occupy(beside[2], plans, row, TAKE, YES)
            self._free_beside = (plans, len(self.rows) + 1, left)
        self.plans = self._tested_for_moves = plans
        self.rows.append(row)

    def _or_unpromised(self, row: int, refusal: Verdict) -> Verdict:
        """A soft job is kept without a promise unless it can never run."""
        able = self.problem.jobs.level_count[row] > 0 and refusal.reason_code is not ReasonCode.NO_WORK
        if self.problem.columns.service_class[row] == SOFT and able:
            return reasons.soft_unpromised(refusal)
        return refusal

    def _decide_batch(self, rows: list[int]) -> list[Verdict]:
        """Promise all newcomers of the decision or none (the rule of the published artifact)."""
        service_class = self.problem.columns.service_class
        invalid = {row: impossible(self.problem, row, self._facts(row)) for row in rows}
        together = [row for row in rows if invalid[row] is None and service_class[row] != BEST_EFFORT]
        plans, failed = self.refilled([*self.rows, *together], promising=True)
        affordable = None if failed else self.budget.affordable(plans, [*self.rows, *together])
        if affordable is not None and together:
            self.plans = affordable
            self.rows += together
        verdicts = []
        for row in rows:
            refusal = invalid[row]
            if refusal is not None:
                verdicts.append(self._or_unpromised(row, refusal))
            elif row not in together:
                verdicts.append(reasons.best_effort(self._facts(row)))
            elif affordable is not None:
                verdicts.append(reasons.fits(self._facts(row), self.problem.stored_plan(self.plans, row)))
            else:
                verdicts.append(self._or_unpromised(row, self._refusal(row, failed[0] if failed else None)))
        return verdicts

    def _fitting(self, row: int) -> tuple[Plans | None, int | None, KeptRoom | None]:
        """Plans that keep all promises and the newcomer's, or None and why.

        Returns (plans; the first row in deadline order that would be late, None if unknown; the demand of
        others that outbids the newcomer, None if nobody does).
        """
        problem = self.problem
        if self._gpu_time_is_missing(row):
            return None, self._first_failing(row), self._outbid(row)
        if self.jobs_at_risk.rows():
            plans = self._fitting_beside(row, (problem.suffix, not problem.suffix))
            return plans or self._as_offered(row), None, None
        if problem.settings.stored_plans:
            plans = self._fitting_beside(row, (problem.suffix,))
            if plans is None and self._made_room_for_moves():
                plans = self._fitting_beside(row, (problem.suffix,))
            if plans is not None:
                return plans, None, None
        order = self.deadline_order(suffix=problem.suffix)
        afresh = order.with_newcomer(self._own_rows(), row)
        if afresh.failing is None and (plans := self.budget.affordable(afresh.plans, [*self.rows, row])):
            order.keep(afresh)
            return plans, None, None
        if problem.settings.stored_plans and (plans := self._as_offered(row)):
            return plans, None, None
        if self.search is None:
            return None, afresh.failing, None
        outbid = self._outbid(row)
        plans = searched(self, row, self.search) if outbid is None else None
        return plans, afresh.failing, outbid

    def _made_room_for_moves(self) -> bool:
        """Plan the present promises anew if forced moves break their plans; True if that was done.

        Stored plans rest on a forecast of moves. A job that starts or ends at another time than planned
        changes that forecast, also long afterwards. As long as it breaks a promise, no set of plans with a
        newcomer would be accepted.
        """
        if self.search is None or self.plans is self._tested_for_moves:
            return False
        self._tested_for_moves = self.plans
        if self.budget.affordable(self.plans, self.rows) is not None:
            return False
        anew = planned_anew(self, most_work=self.search.most_work_for_promises)
        if anew is None:
            return False
        self.plans = self._tested_for_moves = anew
        return True

    def _outbid(self, row: int) -> KeptRoom | None:
        """The demand of others that forbids a wider search for this newcomer; None where it may be run."""
        if self.search is None or self.search.everybody or self.jobs_at_risk.rows():
            return None
        return self.bid_prices.outbid(row)

    def _gpu_time_is_missing(self, row: int) -> bool:
        """Whether GPU time alone proves that no plans keep all promises and the newcomer's.

        The test runs only for `SEVERAL` newcomers or more: it costs more than one early refusal saves.
        """
        # A newcomer that accepts an offer has a plan already.
        if len(self.problem.newcomers) < SEVERAL or self.problem.stored.length[row]:
            return False
        if self._needed is None:
            self._needed = self.needs_of(self.problem)
        return self._needed.is_missing(self._own_rows(), row)

    def _first_failing(self, row: int) -> int | None:
        """The first row that would be late if the newcomer were promised, for the text of the refusal."""
        if self.jobs_at_risk.rows():
            return None
        order = self.deadline_order(suffix=self.problem.suffix)
        return order.with_newcomer(self._own_rows(), row).failing

    def _own_rows(self) -> list[int]:
        return [row for row in self.rows if row < self.problem.count]

    def deadline_order(self, *, suffix: bool) -> DeadlineOrder:
        """All promises filled from scratch in deadline order, without a newcomer's."""
        if suffix not in self._deadline_orders:
            self._deadline_orders[suffix] = DeadlineOrder(
                self.problem, self.plans, self._opened, self.work, suffix=suffix
            )
        return self._deadline_orders[suffix]

    @cached_property
    def _opened(self) -> Timeline:
        """What held offers leave free; not to be changed. Their plans stay what was offered."""
        opened = self.problem.opened
        return occupied(opened, self.plans, self.offers, YES) if self.offers.size else opened

    def _fitting_beside(self, row: int, variants: tuple[bool, ...]) -> Plans | None:
        """Plans with the newcomer's beside all others, pauses charged; tried are these variants of
        filling."""
        due = float(self.problem.due[row] - self.problem.slack_seconds[row])
        for suffix in variants:
            beside = self.filled_beside(row, due, suffix=suffix)
            affordable = None if beside is None else self.budget.affordable(beside, [*self.rows, row])
            if affordable is not None and not self.jobs_at_risk.delayed_by(affordable, row):
                return affordable
        return None

    def filled_beside(self, row: int, due: float, *, suffix: bool | None = None) -> Plans | None:
        """Plans with one more job on the capacity that the present plans leave free; None if it is late.

        ``due``: when the job's last iteration must end, in seconds from now. ``suffix``: variant of filling;
        None takes the configured one.
        """
        before, room = self.plans, self.jobs_at_risk.room_for_newcomers()
        self.plans = copy_plans(before)
        fits = self._fill_one(row, due, room, guarded=True, suffix=suffix)
        plans, self.plans = self.plans, before
        return plans if fits else None

    def _as_offered(self, row: int) -> Plans | None:
        """The present plans and the offered plan that the newcomer accepts.

        None if the newcomer holds no offer, or if the offered plan no longer keeps all promises.
        """
        problem = self.problem
        if problem.stored.length[row] == 0:
            return None
        plans = copy_plans(self.plans)
        charge_plans(problem.jobs, plans, np.array([row]), NO_CHARGES)
        if plans.finish[row] > problem.due[row] + 2 * TIME_TOLERANCE:
            return None
        if overbooked(self.timeline([*self.rows, row])):
            return None
        return self.budget.affordable(plans, [*self.rows, row])

    def _facts(self, row: int) -> reasons.JobFacts:
        return reasons.job_facts(self.problem, row, spared=bool(self.jobs_at_risk.rows()))

    # Tools ---------------------------------------------------------------------------------

    def in_deadline_order(self, rows: list[int]) -> list[int]:
        """Rows in the order of Algorithm 1: deadline, submission, id."""
        if len(rows) < 2:
            return list(rows)
        chosen = np.array(rows, dtype=np.int64)
        ordered: list[int] = chosen[np.argsort(self.problem.by_deadline[chosen])].tolist()
        return ordered

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
            order, self.problem.due - self.problem.slack_seconds, carry, True, suffix, False
        )
        return plans, int(failing[0]) if failing.size else None

    def _refilled(
        self,
        order: list[int],
        due: FloatArray,
        carry: FloatArray,
        guarded: bool,
        suffix: bool,
        to_the_end: bool,
    ) -> tuple[Plans, IntArray]:
        problem = self.problem
        plans, failing, pieces_passed = refill_beside(
            problem.jobs, due, self.plans, np.array(order, dtype=np.int64), carry, self._opened,
            problem.slots, Terms(guarded, suffix), to_the_end,
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
        jobs = problem.count
        order = self.in_deadline_order([row for row in rows if row < jobs])
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

    def _fill_one(
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
            self.plans = set_plan(self.plans, row, draft, pieces, finish, gpu_time)
        return bool(pieces)

    def _refusal(self, row: int, first_failing: int | None) -> Verdict:
        """The refusal, with the GPUs that were free in the tightest piece before the deadline."""
        problem = self.problem
        now = problem.now
        job = self._facts(row)
        due = float(problem.due[row] - problem.slack_seconds[row])
        needed = peak_gpus_alone(problem, row, due)
        timeline = self.jobs_at_risk.room_for_newcomers()
        before_due = rows_where(timeline.times[: timeline.pieces] < due)
        left = timeline.free[:, : timeline.pieces].min(axis=0)[before_due]
        tightest = int(np.argmin(left))
        at = float(timeline.times[before_due[tightest]])
        if first_failing is None or first_failing == row:
            return reasons.capacity(job, now, needed, int(left[tightest]), at)
        broken = self._facts(first_failing)
        return reasons.would_break(job, now, broken, needed, int(left[tightest]), at)
