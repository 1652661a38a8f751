"""Offers: a later deadline that can be promised, for a job whose own cannot (contracts 3).

The verdict is not monotone in the deadline, so an offer is one deadline found by search and
verified by admission itself, not the earliest there is.
"""

from __future__ import annotations

from dataclasses import replace
from math import ceil, inf

from scheduling.core.elasticflow.admission import Admission
from scheduling.core.elasticflow.minimum_satisfactory_share import earliest_finish
from scheduling.core.elasticflow.pause_budget import PauseBudget
from scheduling.core.elasticflow.search_limits import SearchLimits
from scheduling.core.elasticflow.wider_search import gpu_time_needed
from scheduling.core.placement.repacking import Seating
from scheduling.core.plans.slots import slot_end
from scheduling.core.problem.problem import Problem, build_problem
from scheduling.core.question.arrays import Plans
from scheduling.core.question.decision import FoundOffer, Verdict
from scheduling.core.question.snapshot import JobSnapshot, ServiceClass, Snapshot

WIDENINGS = 6
DEADLINE_STEP_SECONDS = 1.0


def what_if(
    snapshot: Snapshot, job: JobSnapshot, search: SearchLimits | None = None
) -> tuple[Verdict, FoundOffer | None]:
    """The verdict that ``job`` would get now, alone among newcomers, and an offer if it is refused.

    ``search``: as admission is asked, so that both answer alike.
    """
    admission, row = _with_newcomer(snapshot, job, search)
    verdict = admission.decide(row)
    if verdict.promised or job.service_class is ServiceClass.BEST_EFFORT:
        return verdict, None
    return verdict, find_offer(snapshot, job, search)


def find_offer(snapshot: Snapshot, job: JobSnapshot, search: SearchLimits | None = None) -> FoundOffer | None:
    """A deadline that admission accepts for work that starts after the offer was held.

    ``snapshot`` holds everybody else; ``job`` asks. ``search``: as admission is asked. None where no deadline
    at all can be promised.
    """
    admission, row = _with_newcomer(snapshot, job, search, as_planned=True)
    return _OfferSearch(admission, row).found()


def _with_newcomer(
    snapshot: Snapshot, job: JobSnapshot, search: SearchLimits | None = None, *, as_planned: bool = False
) -> tuple[Admission, int]:
    others = tuple(other for other in snapshot.jobs if other.id != job.id and not other.newcomer)
    asking = replace(job, newcomer=True, promised=False, gpus_now=0, placement=(), stored_plan=None)
    problem = build_problem(replace(snapshot, jobs=(*others, asking)))
    budget = PauseBudget(problem, Seating(problem.present_placement))
    row = problem.columns.ids.index(job.id)
    return Admission(problem, budget, search=search, as_planned=as_planned), row


class _OfferSearch:
    """Looks beside all present plans, none of which may change for an offer that may never be taken."""

    def __init__(self, admission: Admission, row: int) -> None:
        self.admission = admission
        self.row = row
        self.problem: Problem = admission.problem
        hold = self.problem.settings.offer_hold_seconds
        self.start = float(slot_end(hold, self.problem.slots))
        self.problem.jobs.earliest[row] = self.start
        self.asked = float(self.problem.columns.deadline_at[row]) - self.problem.now

    def found(self) -> FoundOffer | None:
        if self.problem.jobs.level_count[self.row] == 0:
            return None
        earliest_finish = self._earliest_finish_beside_present_plans()
        if earliest_finish == inf:
            return None
        deadline, plans = self._beside_present_plans(earliest_finish)
        if plans is None:
            return None
        return FoundOffer(
            deadline_at=self.problem.now + deadline,
            plan=self.problem.stored_plan(plans, self.row),
            starts_at=self.problem.now + self.start,
        )

    def _beside_present_plans(self, earliest_finish: float) -> tuple[float, Plans | None]:
        """A deadline met while all other plans stay, widened until its pauses can be borne."""
        deadline = self._rounded(self._deadline_for(earliest_finish))
        horizon = deadline - self.start
        for _ in range(WIDENINGS):
            self.problem.due[self.row] = self._due(deadline) + self.problem.slack_seconds
            plans = None if self._room_is_kept(deadline) else self._filled_beside(deadline)
            if plans is not None:
                return deadline, plans
            horizon *= 1.5
            deadline = self._rounded(self.start + horizon)
        return inf, None

    def _deadline_for(self, finish: float) -> float:
        """The deadline for which a last iteration at ``finish`` is in time, slack included."""
        return finish + float(self.problem.jobs.finishing[self.row]) + self.problem.slack_seconds

    def _rounded(self, deadline: float) -> float:
        """Up to a whole second on the caller's axis, and never before the deadline asked for."""
        now = self.problem.now
        whole = ceil((now + deadline - 1e-6) / DEADLINE_STEP_SECONDS) * DEADLINE_STEP_SECONDS
        return max(whole - now, self.asked) if self.asked < inf else whole - now

    def _earliest_finish_beside_present_plans(self) -> float:
        """The earliest last iteration over all level caps, all other plans as they are."""
        problem = self.problem
        timeline = self.admission.sparing.room_for_newcomers()
        draft = problem.scratch(timeline.pieces)
        return float(
            earliest_finish(
                problem.jobs, self.row, timeline, True, problem.slots,
                draft,
            )
        )  # fmt: skip

    def _filled_beside(self, deadline: float) -> Plans | None:
        admission = self.admission
        plans = admission.filled_beside(self.row, self._due(deadline))
        if plans is None:
            return None
        return admission.budget.affordable(plans, [*admission.rows, self.row], only_mend=self.row)

    def _room_is_kept(self, deadline: float) -> bool:
        """Whether a newcomer with that deadline would be refused for the sake of others."""
        prices, due = self.admission.bid_prices, self._due(deadline)
        return (
            prices.asked
            and prices.kept(self.row, gpu_time_needed(self.problem, self.row, due - self.start), due)
            is not None
        )

    def _due(self, deadline: float) -> float:
        """When the last iteration must end for a deadline, slack kept."""
        return deadline - float(self.problem.jobs.finishing[self.row]) - self.problem.slack_seconds
