"""Admission control: Algorithm 1 of ElasticFlow (section 4.1).

Admission promises a newcomer its deadline when one set of plans keeps all promises, the new one included.
Stored plans carry the guarantee. Filling all jobs from scratch is a heuristic: it may fail while the stored
plans still keep every promise.
"""

from __future__ import annotations

from weakref import proxy

import numpy as np

from kernels.compiling import YES
from scheduling.core.elasticflow.alone import impossible, peak_gpus_alone
from scheduling.core.elasticflow.bid_prices import BidPrices
from scheduling.core.elasticflow.early_refusal import GpuTimeNeeded
from scheduling.core.elasticflow.jobs_at_risk import JobsAtRisk
from scheduling.core.elasticflow.making_room import room_made
from scheduling.core.elasticflow.pause_budget import PauseBudget
from scheduling.core.elasticflow.promised_plans import PromisedPlans
from scheduling.core.elasticflow.promises import Promises
from scheduling.core.elasticflow.search_limits import SearchLimits
from scheduling.core.elasticflow.wider_search import planned_anew
from scheduling.core.plans.charging import NO_CHARGES, charge_plans
from scheduling.core.plans.stored_plans import stored_plans_keep
from scheduling.core.plans.timeline import TAKE, occupy, overbooked
from scheduling.core.problem import reasons
from scheduling.core.problem.problem import Problem
from scheduling.core.problem.reasons import CostlyRoom
from scheduling.core.problem.work import NEWCOMER, Work
from scheduling.core.question.arrays import (
    TIME_TOLERANCE,
    Plans,
    copy_plans,
    rows_where,
)
from scheduling.core.question.columns import BEST_EFFORT, SOFT
from scheduling.core.question.decision import ReasonCode, Verdict
from scheduling.core.question.snapshot import AdmissionRule

MIN_NEWCOMERS_FOR_EARLY_TEST = 8
"""With at least this many newcomers in one decision, the early test of GPU time saves more than it costs."""


class Admission(PromisedPlans):
    """The promises of one decision, and the plans that keep them.

    The constructor computes plans for the present promises, and may replace the stored ones.

    ``rows`` are the present promises and held offers that ``plans`` keep. ``at_risk``: rows whose promise
    neither the stored plans nor a refill keeps. ``used_stored``: set by the `Planner` when reallocation falls
    back to stored plans; always False when only newcomers are decided. ``search``: limits of the
    wider search; None: there is none, and newcomers may delay jobs at risk. With a search, jobs at risk are
    protected: no newcomer that still needs a plan delays them (decision 0011). ``as_planned``: do not cut
    present promises to make GPUs free for jobs at risk. ``work``: counts the work of the decision and limits
    it; newcomers beyond the limit wait for the next decision (decision 0012).

    A guarded fill leaves the failure reserve free. Uniform filling caps every piece of a plan at one level;
    suffix filling caps early pieces one level lower as long as the deadline allows. Forced moves are moves to
    other GPUs that the placement of all plans makes necessary; `PauseBudget` charges their pauses.
    """

    gpu_time_test = GpuTimeNeeded

    def __init__(
        self,
        problem: Problem,
        budget: PauseBudget,
        *,
        search: SearchLimits | None = None,
        as_planned: bool = False,
        work: Work | None = None,
    ) -> None:
        super().__init__(problem, work or Work())
        self.budget = budget
        self.budget.work = self.work
        self.search = search
        self.at_risk: list[int] = []
        self.used_stored = False
        # Use a proxy: a reference cycle would keep the arrays until the garbage collector runs, and each
        # decision would start on cold memory.
        itself: Promises = proxy(self)
        self.jobs_at_risk = JobsAtRisk(itself)
        self.bid_prices = BidPrices(itself)
        self._needed: GpuTimeNeeded | None = None
        self._tested_for_moves: Plans | None = None
        self._establish()
        columns = problem.columns
        self._retest(rows_where(columns.at_risk & ~columns.newcomer).tolist())
        if not as_planned and self.jobs_at_risk.make_room():
            self._retest(self.at_risk)

    # Present promises ----------------------------------------------------------------------

    def _establish(self) -> None:
        """Find plans that keep the present promises, without the pauses of forced moves. Jobs that stay late
        are at risk."""
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
        """Return the rows that end late under the stored plans, after late plans were filled again where
        possible.

        None if the plans of the jobs that are on time overbook the GPUs.
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
            if self.fill_one(row, float(problem.due[row]), timeline, guarded=False):
                timeline = occupy(timeline, self.plans, row, TAKE, YES)
                late.remove(row)
        return late

    def _retest(self, rows: list[int]) -> None:
        """Renew the promise of each job at risk whose deadline can be met again."""
        for row in self.in_deadline_order(rows):
            before = copy_plans(self.plans)
            if self.fill_one(row, float(self.problem.due[row]), self.timeline(self.rows), guarded=True):
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

        Afterwards ``plans`` meet the deadline of each job in ``rows``, which excludes jobs at risk. Plans
        accepted for a newcomer include the pauses of forced moves; those before it may not. Newcomers are
        decided one by one; the batch rule decides them together, but only without protected jobs at risk
        and without prudent admission. One by one, the first newcomer always gets a verdict. After the work
        limit the list ends; the rest wait for the next decision.
        """
        together = not (self.bid_prices.is_prudent or self.jobs_at_risk.rows())
        if self.problem.settings.admission is AdmissionRule.BATCH and together:
            return self._decide_batch(self.problem.newcomers)
        verdicts: list[Verdict] = []
        for row in self.problem.newcomers:
            if verdicts and self.work.is_spent():
                break
            # Treat only this newcomer as new: it must leave slack and reserve unused. Newcomers promised
            # earlier in this loop may use both.
            self.budget.treat_as_new([row])
            verdicts.append(self.decide(row))
        self.budget.treat_as_new(self.problem.newcomers)
        return verdicts

    def decide(self, row: int) -> Verdict:
        """Decide one newcomer.

        A promise changes the plans. A refusal replaces them only if forced moves had broken a present
        promise.
        """
        self.work.add(NEWCOMER)
        verdict = impossible(self.problem, row, self._facts(row))
        if verdict is None and self.problem.columns.service_class[row] == BEST_EFFORT:
            return reasons.best_effort(self._facts(row))
        if verdict is None and (kept := self.bid_prices.room_kept_from(row)):
            verdict = reasons.room_kept(self._facts(row), self.problem.now, kept)
        if verdict is None:
            plans, first_failing, costly = self._fitting(row)
            if plans is not None:
                self._promise(plans, row)
                return reasons.fits(self._facts(row), self.problem.stored_plan(plans, row))
            verdict = self._refusal(row, first_failing)
            if costly is not None:
                verdict = reasons.no_room_made(verdict, costly)
        return self._or_unpromised(row, verdict)

    def _promise(self, plans: Plans, row: int) -> None:
        """Add the newcomer to the promises; ``plans`` keep all of them."""
        self.add(plans, row)
        self._tested_for_moves = plans

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

    def _fitting(self, row: int) -> tuple[Plans | None, int | None, CostlyRoom | None]:
        """Return plans that keep all promises and the newcomer's, or None and why.

        If jobs at risk are protected: fill beside the present plans under both variants without delaying
        those jobs; then take an accepted offer, which is not checked for delays. Otherwise: fill beside the
        stored plans, if settings use them (replan once if forced moves broke them); then a refill in deadline
        order (Algorithm 1); then an accepted offer; then the wider search, if there is one.

        Returns (plans; the first row in deadline order that would be late, None if unknown; what the wider
        search would cost if it costs too much).
        """
        problem = self.problem
        if self._gpu_time_is_missing(row):
            return None, self._first_failing(row), None
        if self.jobs_at_risk.rows():
            plans = self._fitting_beside(row, (problem.suffix, not problem.suffix))
            return plans or self._as_offered(row), None, None
        if problem.settings.stored_plans:
            plans = self._fitting_beside(row, (problem.suffix,))
            if plans is None and self._replan_for_forced_moves():
                plans = self._fitting_beside(row, (problem.suffix,))
            if plans is not None:
                return plans, None, None
        order = self.deadline_order(suffix=problem.suffix)
        afresh = order.with_newcomer(self.own_rows(), row)
        if afresh.failing is None and (plans := self.budget.affordable(afresh.plans, [*self.rows, row])):
            order.keep(afresh)
            return plans, None, None
        if problem.settings.stored_plans and (plans := self._as_offered(row)):
            return plans, None, None
        if self.search is None:
            return None, afresh.failing, None
        plans, costly = room_made(self, row, self.search, self.bid_prices.typical_need())
        return plans, afresh.failing, costly

    def _replan_for_forced_moves(self) -> bool:
        """Plan the present promises anew if forced moves break their plans; True if that was done.

        Any deviation from the plans changes the forecast of forced moves. If the new forecast breaks a
        promise, every newcomer would be refused.
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

    def _gpu_time_is_missing(self, row: int) -> bool:
        """Whether GPU time alone proves that no plans keep all promises and the newcomer's.

        The test runs only for `MIN_NEWCOMERS_FOR_EARLY_TEST` newcomers or more: it costs more than one early
        refusal saves.
        """
        # A newcomer that accepts an offer has a plan already.
        if len(self.problem.newcomers) < MIN_NEWCOMERS_FOR_EARLY_TEST or self.problem.accepts_offer(row):
            return False
        if self._needed is None:
            self._needed = self.gpu_time_test(self.problem)
        return self._needed.is_missing(self.own_rows(), row)

    def _first_failing(self, row: int) -> int | None:
        """Return the row to name in the refusal: the first that would be late. None if jobs at risk are
        protected."""
        if self.jobs_at_risk.rows():
            return None
        order = self.deadline_order(suffix=self.problem.suffix)
        return order.with_newcomer(self.own_rows(), row).failing

    def _fitting_beside(self, row: int, variants: tuple[bool, ...]) -> Plans | None:
        """Return the present plans and one for the newcomer; None if no variant fits with pauses.

        ``variants``: True for suffix filling, False for uniform filling.
        """
        due = float(self.problem.due[row] - self.problem.slack_seconds[row])
        for suffix in variants:
            beside = self.filled_beside(row, due, suffix=suffix)
            affordable = None if beside is None else self.budget.affordable(beside, [*self.rows, row])
            if affordable is not None and not self.jobs_at_risk.delayed_by(affordable, row):
                return affordable
        return None

    def filled_beside(self, row: int, due: float, *, suffix: bool | None = None) -> Plans | None:
        """Return the present plans and one for this job, on the capacity beside the promises and the
        protected jobs. None if the job would be late.

        ``due``: when the job's last iteration must end, in seconds from now. ``suffix``: True for suffix
        filling, False for uniform filling, None for the configured one.
        """
        before, room = self.plans, self.jobs_at_risk.room_for_newcomers()
        self.plans = copy_plans(before)
        fits = self.fill_one(row, due, room, guarded=True, suffix=suffix)
        plans, self.plans = self.plans, before
        return plans if fits else None

    def _as_offered(self, row: int) -> Plans | None:
        """Return the present plans and the offered plan that the newcomer accepts.

        None if the newcomer holds no offer, or if the offered plan no longer keeps all promises.
        """
        problem = self.problem
        if not problem.accepts_offer(row):
            return None
        plans = copy_plans(self.plans)
        charge_plans(problem.jobs, plans, np.array([row]), NO_CHARGES)
        if plans.finish[row] > problem.due[row] + 2 * TIME_TOLERANCE:
            return None
        if overbooked(self.timeline([*self.rows, row])):
            return None
        return self.budget.affordable(plans, [*self.rows, row])

    def _facts(self, row: int) -> reasons.VerdictFacts:
        return reasons.job_facts(self.problem, row, protects=bool(self.jobs_at_risk.rows()))

    def _refusal(self, row: int, first_failing: int | None) -> Verdict:
        """Return the refusal, with the GPUs that were free in the tightest piece before the deadline."""
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
