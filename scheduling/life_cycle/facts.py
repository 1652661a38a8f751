"""What a job's life depends on, as read from its rows at one moment. Times are timezone-aware UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from scheduling.choices import TERMINAL_STATES, GenerationState, Goal, JobState, Purpose


@dataclass(frozen=True)
class WorkerFacts:
    """One rank of a generation, as its agent last told."""

    phase: str
    #: Its process is there no more.
    gone: bool
    #: With which code it ended, where that is known.
    exit_code: int | None
    changed_at: datetime

    def ended_well(self) -> bool:
        """Whether it did what it was there for."""
        return self.phase == "completed" or self.exit_code == 0

    def step(self) -> str:
        """Its phase; that of a process that is gone is ``exited``."""
        return "exited" if self.gone else self.phase


@dataclass(frozen=True)
class GenerationFacts:
    """One generation of a job."""

    number: int
    purpose: Purpose
    state: GenerationState
    goal: Goal
    world_size: int
    created_at: datetime
    #: Every GPU that it was given is its job's: its workers may start.
    holds_gpus: bool = True
    #: Rank 0 has done an iteration of it, or a measurement has begun.
    was_live: bool = False
    #: When the present step has lasted too long.
    step_expires_at: datetime | None = None
    #: Why it ended; empty while it has not.
    retired_because: str = ""
    workers: tuple[WorkerFacts, ...] = ()
    #: The state that it stopped with is durable.
    state_stored: bool = False
    #: Iterations a second as measured on as many GPUs; 0 where nobody knows.
    iterations_per_second: float = 0.0
    #: How long storing the job's weights takes.
    storing_seconds: float = 0.0
    #: GPUs of the cluster's own servers among its own, by any number that tells them apart.
    owned_gpus: frozenset[int] = frozenset()

    def retired(self) -> bool:
        """Whether it has ended."""
        return self.state == GenerationState.RETIRED

    def all_are(self, steps: tuple[str, ...]) -> bool:
        """Whether every rank has been heard of and is in one of these steps."""
        return len(self.workers) == self.world_size and all(one.step() in steps for one in self.workers)


@dataclass(frozen=True)
class JobFacts:
    """A job with its generations that have not ended."""

    id: str
    state: JobState
    paused_by_owner: bool = False
    promised: bool = False
    iterations_done: int = 0
    #: Iteration of the newest durable state; 0 where there is none.
    stored_iteration: int = 0
    #: Errors of its function since it last got further, and where the last one was.
    failures: int = 0
    failed_at_iteration: int = 0
    #: Number of the newest generation, whatever its purpose.
    last_generation: int = 0
    #: The generation that trains, and the one that is on its way to.
    live: GenerationFacts | None = None
    coming: GenerationFacts | None = None
    measurements: tuple[GenerationFacts, ...] = ()

    def finished(self) -> bool:
        """Whether nothing of it changes any more."""
        return self.state in TERMINAL_STATES


@dataclass(frozen=True)
class StepBounds:
    """How long steps may take, in seconds: a suspension, a hand-over, and the wait of a measurement for the
    jobs that it displaces."""

    suspend_seconds: float
    handover_seconds: float
    displacing_seconds: float
