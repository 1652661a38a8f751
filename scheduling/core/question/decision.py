"""The output of a decision: verdicts on newcomers, plans, GPU placements and changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from scheduling.core.question.snapshot import StoredPlan


class ReasonCode(StrEnum):
    """Why a newcomer got its verdict: stable codes for programs. The sentence beside the code is for
    people."""

    FITS = "fits"
    BEST_EFFORT = "best_effort"
    SOFT_UNPROMISED = "soft_unpromised"
    NO_PROMISES = "no_promises"
    DEADLINE_PASSED = "deadline_passed"
    NO_LEVELS = "no_levels"
    NO_WORK = "no_work"
    TOO_SLOW_ALONE = "too_slow_alone"
    CAPACITY = "capacity"
    WOULD_BREAK_PROMISE = "would_break_promise"
    ROOM_KEPT = "room_kept"


class ChangeKind(StrEnum):
    """How a job's GPUs change between two plans."""

    START = "start"
    GROW = "grow"
    SHRINK = "shrink"
    MIGRATE = "migrate"
    SUSPEND = "suspend"


REASONS = {
    ChangeKind.START: "its planned start has come",
    ChangeKind.GROW: "GPUs are free that shorten its work",
    ChangeKind.SHRINK: "fewer GPUs are enough for it now, or other jobs need them",
    ChangeKind.MIGRATE: "its GPUs are needed as one block by a larger job",
    ChangeKind.SUSPEND: "its GPUs are needed for promises",
}
"""The reason of a change, by its kind."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one newcomer."""

    #: The newcomer's id.
    job_id: str
    #: Whether the job is admitted; false only for an ``slo`` job that cannot be promised.
    admitted: bool
    #: Whether its deadline is promised.
    promised: bool
    #: Why, as a code.
    reason_code: ReasonCode
    #: Why, as a sentence.
    reason: str
    #: The plan by which a promise is kept; None without a promise.
    minimum_satisfactory_share: StoredPlan | None = None
    #: GPUs that were missing in the tightest slot.
    missing_gpus: int = 0
    #: Id of the admitted job that would have been late.
    broken_job: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """A change of one job's GPUs.

    Changes are listed in an order in which GPUs are free when a change needs them.
    """

    #: The job's id.
    job_id: str
    #: How its GPUs change.
    kind: ChangeKind
    #: Number of GPUs before.
    gpus_before: int
    #: Number of GPUs after.
    gpus_after: int
    #: GPU addresses after; empty for a suspension.
    addresses: tuple[int, ...]
    #: The whole pause charged, with the wait of ``suspend_first``.
    pause_seconds: float
    #: Why, as a sentence.
    reason: str
    #: Whether the job must release its old GPUs before other jobs move, because they wait for each other in a
    #: circle.
    suspend_first: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The whole decision. ``plans`` and ``placements`` cover every job that is not declined or undecided."""

    #: Verdicts on newcomers.
    verdicts: tuple[Verdict, ...]
    #: Plan by job id.
    plans: dict[str, StoredPlan]
    #: GPU addresses by job id.
    placements: dict[str, tuple[int, ...]]
    #: Changes of GPUs, in order.
    changes: tuple[Change, ...]
    #: Ids of promised jobs whose promise no plan keeps.
    at_risk: tuple[str, ...] = ()
    #: The first time after ``next_slot_at`` at which a plan takes more GPUs or ends, or infinity. A plan that
    #: only drops GPUs needs no new decision: a job that keeps unclaimed GPUs makes no other job late.
    next_wake_at: float = float("inf")
    #: Whether reallocation fell back to stored plans; always False when only newcomers are decided.
    used_stored_plans: bool = False
    #: Sentences about the decision, for logs.
    notes: tuple[str, ...] = field(default=())
    #: What the policy notes about the cluster for its next decision.
    memory: tuple[float, ...] = field(default=())
    #: What the policy notes about each job for its next decision, by job id.
    job_memory: dict[str, tuple[float, ...]] = field(default_factory=dict)
    #: Ids of newcomers that the limit of work (`PlannerSettings.most_work`) left for another decision. They
    #: appear nowhere else in the decision.
    undecided: tuple[str, ...] = ()
    #: Which GPUs of each placement flexible workers hold, where servers are borrowed.
    flexible: dict[str, tuple[bool, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundOffer:
    """A later deadline that can be promised if the owner accepts it."""

    #: The deadline, in seconds on the caller's axis.
    deadline_at: float
    #: The plan that keeps it.
    plan: StoredPlan
    #: The earliest start of the plan: the end of the time for which the offer is held.
    starts_at: float
