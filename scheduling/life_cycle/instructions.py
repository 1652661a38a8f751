"""Instructions about a job. Each changes a few rows; a list is carried out in order, in one transaction.

Generations are identified by their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.choices import JobState, RetireReason


@dataclass(frozen=True)
class Retire:
    """End a generation: its agents stop its workers, and its GPUs are free once the agents confirm it."""

    #: Number of the generation.
    generation: int
    #: Why, as a code.
    because: RetireReason
    #: Why, as a sentence.
    reason: str


@dataclass(frozen=True)
class CallReady:
    """Record that every worker of a coming generation waits for its state."""

    #: Number of the generation.
    generation: int


@dataclass(frozen=True)
class BeginTraining:
    """Start a coming generation without a live predecessor from the last durable state."""

    #: Number of the generation.
    generation: int
    #: Bound on the start, in seconds from now; None keeps the present bound.
    seconds: float | None = None


@dataclass(frozen=True)
class BeginHandover:
    """Tell the live generation to hand over, and the ready generation to take over."""

    #: Number of the live generation.
    predecessor: int
    #: Number of the ready generation.
    generation: int


@dataclass(frozen=True)
class TellToSuspend:
    """Tell the live generation to store its state and release its GPUs."""

    #: Number of the generation.
    generation: int
    #: Bound on the suspension, in seconds from now.
    seconds: float


@dataclass(frozen=True)
class BeginMeasuring:
    """Record that a measurement has begun."""

    #: Number of the generation.
    generation: int


@dataclass(frozen=True)
class BecomeLive:
    """Record that a generation trains: rank 0 has completed its first iteration."""

    #: Number of the generation.
    generation: int
    #: That first iteration.
    iteration: int


@dataclass(frozen=True)
class GoBack:
    """Reset the job's progress to its last durable state."""

    #: Iteration of that state.
    iteration: int


@dataclass(frozen=True)
class BeginRecovery:
    """Record that a live generation is lost, which begins a recovery."""

    #: Number of the generation.
    generation: int
    #: Why it is lost, as a sentence.
    reason: str


@dataclass(frozen=True)
class AwaitServers:
    """Suspend a running job without GPUs; it restarts from its newest remaining state."""

    #: Iteration of its last durable state.
    iteration: int


@dataclass(frozen=True)
class NoPause:
    """Clear the expected pause: no change of generation is expected any more."""


@dataclass(frozen=True)
class CountFailure:
    """Record that a generation failed, and how often the job has failed without progress."""

    #: Number of the generation.
    generation: int
    #: Number of these failures.
    failures: int
    #: The furthest iteration that the job had reached.
    iteration: int
    #: Why, as a code.
    reason: str
    #: Why, as a sentence.
    message: str


@dataclass(frozen=True)
class ExcuseFailure:
    """Record that a generation's end was no failure of its job: its server has failed."""

    #: Number of the generation.
    generation: int


@dataclass(frozen=True)
class Fail:
    """End the job, whose function, environment or data is at fault."""

    #: Why, as a code.
    reason: str
    #: Why, as a sentence.
    message: str
    #: The function's traceback; empty for none.
    traceback: str = ""


@dataclass(frozen=True)
class MoveTo:
    """Move the job to another state, with an entry in its history."""

    #: The new state.
    state: JobState
    #: Text of the entry.
    message: str
    #: Number of the generation concerned; None for none.
    generation: int | None = None


@dataclass(frozen=True)
class Record:
    """Add an entry to the job's history."""

    #: Code of the entry.
    kind: str
    #: The entry as a sentence.
    message: str
    #: Number of the generation concerned; None for none.
    generation: int | None = None


@dataclass(frozen=True)
class TellPlanner:
    """Tell the planner that a planning fact has changed."""

    #: The fact, as a short text.
    trigger: str


Instruction = (
    Retire | CallReady | BeginTraining | BeginHandover | TellToSuspend | BeginMeasuring | BecomeLive | GoBack
    | BeginRecovery | AwaitServers | NoPause | CountFailure | ExcuseFailure | Fail | MoveTo | Record
    | TellPlanner
)  # fmt: skip
