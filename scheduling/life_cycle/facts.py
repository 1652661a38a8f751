"""Facts of a job's life cycle, read from its rows at one time. Times are timezone-aware UTC."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import datetime

from scheduling.choices import TERMINAL_STATES, GenerationState, Goal, JobState, Purpose
from scheduling.life_cycle.instructions import Fail


@dataclass(frozen=True)
class WorkerFacts:
    """One rank of a generation, as its agent last reported it."""

    #: Its last reported phase.
    phase: str
    #: Whether its process has ended.
    gone: bool
    #: Exit code of the process; None where unknown.
    exit_code: int | None
    #: When the agent last reported a change.
    changed_at: datetime

    def ended_well(self) -> bool:
        """Return whether the worker has completed its task."""
        return self.phase == "completed" or self.exit_code == 0

    def step(self) -> str:
        """Return the worker's phase, or ``exited`` once its process has ended."""
        return "exited" if self.gone else self.phase


@dataclass(frozen=True)
class GenerationFacts:
    """One generation of a job."""

    #: Its number within the job; numbers only rise.
    number: int
    #: Whether it trains or measures.
    purpose: Purpose
    #: Its state.
    state: GenerationState
    #: Goal of its workers.
    goal: Goal
    #: Number of its ranks.
    world_size: int
    #: When it was created.
    created_at: datetime
    #: Whether the job holds every GPU that the generation was given, so that its workers may start.
    holds_gpus: bool = True
    #: Whether rank 0 has completed an iteration of it, or its measurement has begun.
    was_live: bool = False
    #: When its present step exceeds its bound; None for no bound.
    step_expires_at: datetime | None = None
    #: Why it was retired; empty while it is not.
    retired_because: str = ""
    #: Its workers, as reported so far.
    workers: tuple[WorkerFacts, ...] = ()
    #: Whether the state with which it stopped is durable.
    state_stored: bool = False
    #: Measured iterations per second on this number of GPUs; 0 if unknown.
    iterations_per_second: float = 0.0
    #: Seconds to store the job's weights.
    storing_seconds: float = 0.0
    #: Its GPUs on owned servers, by any number that identifies them.
    owned_gpus: frozenset[int] = frozenset()
    #: Whether all its ranks are on one server, so that no network between servers can have separated them.
    #: Read only if a rank reports a lost peer.
    on_one_server: bool = False
    #: Code of its failure if its end counts as a failure of its job; empty otherwise.
    failure_reason: str = ""

    def retired(self) -> bool:
        """Return whether the generation has ended."""
        return self.state == GenerationState.RETIRED

    def all_are(self, steps: tuple[str, ...]) -> bool:
        """Return whether every rank has reported and is in one of these steps."""
        return len(self.workers) == self.world_size and all(one.step() in steps for one in self.workers)


@dataclass(frozen=True)
class JobFacts:
    """A job and its unretired generations."""

    #: The job's id.
    id: str
    #: Its state.
    state: JobState
    #: Whether its owner paused it.
    paused_by_owner: bool = False
    #: Whether it holds a promise.
    promised: bool = False
    #: Iterations completed so far.
    iterations_done: int = 0
    #: Iteration of the newest durable state; 0 for none.
    stored_iteration: int = 0
    #: Failures since it last passed its furthest iteration.
    failures: int = 0
    #: The furthest iteration that it had reached when it failed.
    failed_at_iteration: int = 0
    #: Why it failed last, once every server of that generation has reported since, so that no lost server can
    #: be the cause. Read only if the job has as many failures as end it.
    last_failure: Fail | None = None
    #: Number of the newest generation, for training or measuring.
    last_generation: int = 0
    #: The live training generation, or None.
    live: GenerationFacts | None = None
    #: The coming training generation, or None.
    coming: GenerationFacts | None = None
    #: Whether a worker of an earlier training generation may still run, since neither its end is confirmed
    #: nor its server fenced. Known only if a generation is to begin without a predecessor.
    ending: bool = False
    #: Unretired measurements.
    measurements: tuple[GenerationFacts, ...] = ()

    def finished(self) -> bool:
        """Return whether the job has reached a final state."""
        return self.state in TERMINAL_STATES


@dataclass(frozen=True)
class StepBounds:
    """Bounds on the length of steps."""

    #: Bound on a suspension.
    suspend_seconds: float
    #: Bound on a hand-over.
    handover_seconds: float
    #: Bound on a measurement's wait for the jobs that it displaces.
    displacing_seconds: float
