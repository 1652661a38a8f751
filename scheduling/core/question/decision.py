"""What a decision says: verdicts on newcomers, a plan for every job, GPUs and changes."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from scheduling.core.question.snapshot import StoredPlan


class ReasonCode(StrEnum):
    """Why a verdict is what it is; stable, for programs. The sentence beside it is for people."""

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
    ChangeKind.SHRINK: "fewer GPUs are enough for it now",
    ChangeKind.MIGRATE: "its GPUs are needed as one block by a larger job",
    ChangeKind.SUSPEND: "its GPUs are needed for promises",
}
"""What a change is for, by its kind."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """The answer to one newcomer.

    ``admitted`` is false only for an ``slo`` job that cannot be promised. ``promised`` is true
    when the deadline is guaranteed. ``missing_gpus`` is the share that was missing: GPUs by which
    the tightest slot fell short. ``broken_job`` names the admitted job that would have been late.
    """

    job_id: str
    admitted: bool
    promised: bool
    reason_code: ReasonCode
    reason: str
    minimum_satisfactory_share: StoredPlan | None = None
    missing_gpus: int = 0
    broken_job: str | None = None


@dataclass(frozen=True, slots=True)
class Change:
    """One job's move to new GPUs. ``addresses`` is empty for a suspension.

    Changes are listed in an order in which GPUs are free when a change needs them. With
    ``suspend_first`` the job must let go of its old GPUs before the others move, because they wait
    for each other in a circle; ``pause_seconds`` is the whole pause charged, that wait included.
    """

    job_id: str
    kind: ChangeKind
    gpus_before: int
    gpus_after: int
    addresses: tuple[int, ...]
    pause_seconds: float
    reason: str
    suspend_first: bool = False


@dataclass(frozen=True, slots=True)
class Decision:
    """The whole answer. ``plans`` and ``placements`` cover every job that is not declined or undecided.

    ``at_risk`` lists promised jobs that no plan saves. ``next_wake_at`` is the first time after
    ``next_slot_at`` at which a plan takes more GPUs or ends, or infinity: planned drops alone need no
    wake-up, since keeping GPUs that nobody wants yet makes nobody late. ``memory`` and ``job_memory`` are
    what the policy wants to be told again at its next decision. ``undecided``: newcomers that the limit of
    work (`PlannerSettings.most_work`) left for another decision; they appear nowhere else in the answer.
    """

    verdicts: tuple[Verdict, ...]
    plans: dict[str, StoredPlan]
    placements: dict[str, tuple[int, ...]]
    changes: tuple[Change, ...]
    at_risk: tuple[str, ...] = ()
    next_wake_at: float = float("inf")
    used_stored_plans: bool = False
    notes: tuple[str, ...] = field(default=())
    memory: tuple[float, ...] = field(default=())
    job_memory: dict[str, tuple[float, ...]] = field(default_factory=dict)
    undecided: tuple[str, ...] = ()
    #: Which GPUs of a placement flexible workers hold, where servers are borrowed.
    flexible: dict[str, tuple[bool, ...]] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FoundOffer:
    """A later deadline that admission accepts for work that starts after the hold, from ``starts_at`` on at
    the earliest."""

    deadline_at: float
    plan: StoredPlan
    starts_at: float
