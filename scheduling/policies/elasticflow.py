"""ElasticFlow as published: admission, elastic allocation and best effort on what is left."""

from __future__ import annotations

from scheduling.core import decide
from scheduling.core.problem.answer import Answer
from scheduling.core.problem.problem import Problem
from scheduling.core.question.decision import FoundOffer, Verdict
from scheduling.core.question.snapshot import JobSnapshot, Snapshot
from scheduling.policies.base import Policy


class ElasticFlow(Policy):
    """Deadline promises by minimum satisfactory share; leftover GPUs by saved GPU time."""

    name = "elasticflow"
    prices_newcomers = True

    def decide_newcomers(self, problem: Problem) -> Answer:
        """Algorithm 1 with present allocations frozen until the next slot."""
        return decide.decide_newcomers(problem)

    def reallocate(self, problem: Problem) -> Answer:
        """Algorithm 1, Algorithm 2, then placement."""
        return decide.reallocate(problem)

    def find_offer(self, snapshot: Snapshot, job: JobSnapshot) -> FoundOffer | None:
        """A later deadline that admission accepts, or None."""
        return decide.find_offer(snapshot, job)

    def what_if(self, snapshot: Snapshot, job: JobSnapshot) -> tuple[Verdict, FoundOffer | None]:
        """The verdict the job would get now, and an offer if it is refused."""
        return decide.what_if(snapshot, job)
