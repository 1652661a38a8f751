"""Offers: a later deadline for a job whose own deadline cannot be promised.

The verdict is not monotone in the deadline. So the search finds some deadline that admission accepts, not
always the earliest one.
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
    """The verdict that ``job`` would get now as the only newcomer, and an offer if it is refused.

    ``search``: the same limits as admission uses, so that both give the same answer.
    """
    admission, row = _with_newcomer(snapshot, job, search)
    verdict = admission.decide(row)
    if verdict.promised or job.service_class is ServiceClass.BEST_EFFORT:
        return verdict, None
    return verdict, find_offer(snapshot, job, search)


def find_offer(snapshot: Snapshot, job: JobSnapshot, search: SearchLimits | None = None) -> FoundOffer | None:
    """A deadline that admission would accept for ``job``, with a plan that starts when the offer expires.

    ``snapshot``: all other jobs. ``search``: the same limits as admission uses. None if no deadline at all
    can be promised.
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
    """The search for one offer. Present plans stay unchanged, because the offer may never be accepted."""

    def __init__(self, admission: Admission, row: int) -> None:
        self.admission = admission
        self.row = row
        self.problem: Problem = admission.problem
        hold = self.problem.settings.offer_hold_seconds
        self.start = float(slot_end(hold, self.problem.slots))
        self.problem.jobs.earliest[row] = self.start
        self._slack_seconds = float(self.problem.slack_seconds[row])
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
        """A deadline, in seconds from now, and the plans that keep it; (inf, None) if there is none.

        All other plans stay unchanged. The deadline moves later until no forced move breaks a promise.
        """
        deadline = self._rounded(self._deadline_for(earliest_finish))
        horizon = deadline - self.start
        for _ in range(WIDENINGS):
            self.problem.due[self.row] = self._due(deadline) + self._slack_seconds
            plans = None if self._room_is_kept(deadline) else self._filled_beside(deadline)
            if plans is not None:
                return deadline, plans
            horizon *= 1.5
            deadline = self._rounded(self.start + horizon)
        return inf, None

    def _deadline_for(self, finish: float) -> float:
        """The earliest deadline that a last iteration at ``finish`` meets with failure slack and stored
        weights."""
        return finish + float(self.problem.jobs.finishing[self.row]) + self._slack_seconds

    def _rounded(self, deadline: float) -> float:
        """The deadline rounded up to a whole second of the snapshot's time, at least the one asked for."""
        now = self.problem.now
        whole = ceil((now + deadline - 1e-6) / DEADLINE_STEP_SECONDS) * DEADLINE_STEP_SECONDS
        return max(whole - now, self.asked) if self.asked < inf else whole - now

    def _earliest_finish_beside_present_plans(self) -> float:
        """The earliest end of the job's last iteration beside the present plans."""
        problem = self.problem
        timeline = self.admission.jobs_at_risk.room_for_newcomers()
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
        """Whether bid prices would refuse a newcomer with that deadline."""
        prices, due = self.admission.bid_prices, self._due(deadline)
        return (
            prices.is_prudent
            and prices.kept(self.row, gpu_time_needed(self.problem, self.row, due - self.start), due)
            is not None
        )

    def _due(self, deadline: float) -> float:
        """When the last iteration must end to meet ``deadline`` with failure slack and stored weights."""
        return deadline - float(self.problem.jobs.finishing[self.row]) - self._slack_seconds
