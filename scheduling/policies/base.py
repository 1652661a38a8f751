"""What a scheduling policy is: a pure answer to two questions about the cluster."""

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
    """One way to divide the cluster. The same question always yields the same answer.

    A policy decides on arrays (`Problem`); the live platform asks with snapshots, the simulator with arrays.
    """

    #: The name by which the policy is chosen, live and in simulation.
    name: ClassVar[str]
    #: Whether the policy ever promises a deadline. One that does not makes no offers either.
    promises: ClassVar[bool] = True
    #: What it notes about each job from one decision to the next: names of the columns of
    #: `Answer.job_memory`.
    memory_columns: ClassVar[tuple[str, ...]] = ()
    #: Whether jobs may run on every measured GPU count, rising throughput or not, instead of only on the
    #: levels of their scaling curve. True for policies that run jobs on the size their user asked for.
    any_measured_size: ClassVar[bool] = False
    #: Whether it heeds `PlannerSettings.newcomers`: whether room can be kept for newcomers that need little.
    prices_newcomers: ClassVar[bool] = False
    #: Whether it puts jobs on servers that are on loan.
    borrows: ClassVar[bool] = False

    @abstractmethod
    def decide_newcomers(self, problem: Problem) -> Answer:
        """Verdicts on newcomers while all present allocations stay as they are."""

    @abstractmethod
    def reallocate(self, problem: Problem) -> Answer:
        """Verdicts, and a new allocation and placement from ``next_slot_at`` on."""

    @abstractmethod
    def find_offer(self, snapshot: Snapshot, job: JobSnapshot) -> FoundOffer | None:
        """A deadline that can be promised for work that starts after an offer was held, or None."""

    @abstractmethod
    def what_if(self, snapshot: Snapshot, job: JobSnapshot) -> tuple[Verdict, FoundOffer | None]:
        """The verdict a job would get, and an offer where it is refused; nothing is kept."""

    def admit(self, snapshot: Snapshot) -> Decision:
        """`decide_newcomers` of a snapshot, answered by job id."""
        return _awake_for_ends(as_decision(self.decide_newcomers(self.problem_of(snapshot))), snapshot)

    def replan(self, snapshot: Snapshot) -> Decision:
        """`reallocate` of a snapshot, answered by job id."""
        return _awake_for_ends(as_decision(self.reallocate(self.problem_of(snapshot))), snapshot)

    def problem_of(self, snapshot: Snapshot) -> Problem:
        """The snapshot as arrays. Raises ValueError where it contradicts itself."""
        return problem_of(snapshot, len(self.memory_columns), measured=self.any_measured_size)


def _awake_for_ends(decision: Decision, snapshot: Snapshot) -> Decision:
    """The decision, to be looked at again before the first server leaves that has a known end."""
    ends_at = first_end(snapshot)
    return replace(decision, next_wake_at=ends_at) if ends_at < decision.next_wake_at else decision
