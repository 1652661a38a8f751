"""The interface of a scheduling policy: a pure function that decides newcomers and reallocates GPUs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import replace
from typing import ClassVar

from scheduling.core.problem.answer import Answer, as_decision
from scheduling.core.problem.problem import Problem
from scheduling.core.question.decision import Decision, FoundOffer, Verdict
from scheduling.core.question.known_ends import first_end
from scheduling.core.question.snapshot import JobSnapshot, Snapshot
from scheduling.core.together.shared_problem import problem_of


class Policy(ABC):
    """One way to divide the cluster. Equal problems get equal answers.

    A policy decides on arrays (`Problem`). The live platform passes snapshots, the simulator passes arrays.
    """

    #: The name by which the policy is chosen, live and in simulation.
    name: ClassVar[str]
    #: Whether the policy ever promises a deadline. One that does not makes no offers either.
    promises: ClassVar[bool] = True
    #: Names of what the policy notes about each job for its next decision: the columns of
    #: `Answer.job_memory`.
    memory_columns: ClassVar[tuple[str, ...]] = ()
    #: Whether jobs may run on every measured GPU count, even without rising throughput, instead of only the
    #: levels of their scaling curve. True for policies that run jobs on the GPU count their user requested.
    any_measured_size: ClassVar[bool] = False
    #: Whether the policy applies `PlannerSettings.newcomers`: it can keep room for newcomers that need
    #: little.
    prices_newcomers: ClassVar[bool] = False
    #: Whether the policy places jobs on on-loan servers.
    borrows: ClassVar[bool] = False

    @abstractmethod
    def decide_newcomers(self, problem: Problem) -> Answer:
        """Decide newcomers while all jobs keep their GPUs."""

    @abstractmethod
    def reallocate(self, problem: Problem) -> Answer:
        """Decide newcomers, then allocate and place all GPUs from ``next_slot_at`` on."""

    @abstractmethod
    def find_offer(self, snapshot: Snapshot, job: JobSnapshot) -> FoundOffer | None:
        """A later deadline that can be promised for work that starts after the offer's hold, or None."""

    @abstractmethod
    def what_if(self, snapshot: Snapshot, job: JobSnapshot) -> tuple[Verdict, FoundOffer | None]:
        """The verdict that a job would get, and an offer if it is refused; nothing is stored."""

    def admit(self, snapshot: Snapshot) -> Decision:
        """`decide_newcomers` of a snapshot, answered by job id."""
        return _awake_for_ends(as_decision(self.decide_newcomers(self.problem_of(snapshot))), snapshot)

    def replan(self, snapshot: Snapshot) -> Decision:
        """`reallocate` of a snapshot, answered by job id."""
        return _awake_for_ends(as_decision(self.reallocate(self.problem_of(snapshot))), snapshot)

    def problem_of(self, snapshot: Snapshot) -> Problem:
        """The snapshot as arrays. Raises ValueError for an inconsistent snapshot."""
        return problem_of(snapshot, len(self.memory_columns), measured=self.any_measured_size)


def _awake_for_ends(decision: Decision, snapshot: Snapshot) -> Decision:
    """The decision with a wake-up before the first server with a known end leaves."""
    ends_at = first_end(snapshot)
    return replace(decision, next_wake_at=ends_at) if ends_at < decision.next_wake_at else decision
