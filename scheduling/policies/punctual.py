"""The default policy: ElasticFlow's promises on owned servers; all other jobs shortest first, also on
borrowed servers."""

from __future__ import annotations

from dataclasses import replace
from functools import lru_cache

from scheduling.core import decide
from scheduling.core.elasticflow.growth_experience import COLUMNS
from scheduling.core.elasticflow.search_limits import SearchLimits
from scheduling.core.lyra.tick import TwoPhase
from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import Problem
from scheduling.core.question.decision import FoundOffer, Verdict
from scheduling.core.question.snapshot import JobSnapshot, Snapshot
from scheduling.core.together.borrowing import decide_beside_loans, reallocate_beside_loans
from scheduling.core.together.growth import grow_by_knapsack
from scheduling.policies.base import Policy

SEARCH = SearchLimits()
ON_LOAN = TwoPhase()


@lru_cache(maxsize=16)
def _on_loan(ageing_weight: float) -> TwoPhase:
    return replace(ON_LOAN, ageing_weight=ageing_weight)


class Punctual(Policy):
    """Promises first, then jobs without a promise at their lowest level, then growth of both."""

    name = "punctual"
    prices_newcomers = True
    borrows = True
    memory_columns = COLUMNS

    def decide_newcomers(self, problem: Problem) -> Answer:
        """Decide newcomers while all jobs keep their GPUs."""
        return decide_beside_loans(problem, lambda part: decide.decide_newcomers(part, search=SEARCH))

    def reallocate(self, problem: Problem) -> Answer:
        """Divide the whole cluster anew from the next slot on."""
        return reallocate_beside_loans(
            problem,
            lambda part: decide.reallocate(
                part, search=SEARCH, growth=grow_by_knapsack, ageing=True, experience=True
            ),
            _on_loan(problem.settings.ageing_weight),
        )

    def find_offer(self, snapshot: Snapshot, job: JobSnapshot) -> FoundOffer | None:
        """A later deadline that admission accepts, or None."""
        return decide.find_offer(snapshot, job, SEARCH)

    def what_if(self, snapshot: Snapshot, job: JobSnapshot) -> tuple[Verdict, FoundOffer | None]:
        """The verdict the job would get now, and an offer if it is refused."""
        return decide.what_if(snapshot, job, SEARCH)
