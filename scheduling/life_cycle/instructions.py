"""Instructions about a job. Each is one small change of rows; a list is carried out in order, in one
transaction.

Generations are named by their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.choices import JobState, RetireReason


@dataclass(frozen=True)
class Retire:
    """End a generation: its agents stop its workers, and its GPUs are free once the agents confirm it."""

    generation: int
    because: RetireReason
    reason: str


@dataclass(frozen=True)
class CallReady:
    """Record that every worker of a coming generation waits for its state."""

    generation: int


@dataclass(frozen=True)
class BeginTraining:
    """Start a coming generation without a living predecessor from the last durable state.

    ``seconds``: bound on the start, from now; None keeps the present bound.
    """

    generation: int
    seconds: float | None = None


@dataclass(frozen=True)
class BeginHandover:
    """Tell the living generation to hand over, and the ready one to take over."""

    predecessor: int
    generation: int


@dataclass(frozen=True)
class TellToSuspend:
    """Tell the living generation to store its state and release its GPUs within ``seconds``."""

    generation: int
    seconds: float


@dataclass(frozen=True)
class BeginMeasuring:
    """Record that a measurement has begun."""

    generation: int


@dataclass(frozen=True)
class BecomeLive:
    """Record that a generation trains: rank 0 has completed its first iteration, ``iteration``."""

    generation: int
    iteration: int


@dataclass(frozen=True)
class GoBack:
    """Reset the job's progress to ``iteration``, that of its last durable state."""

    iteration: int


@dataclass(frozen=True)
class NoPause:
    """No change of generation is expected any more."""


@dataclass(frozen=True)
class CountFailure:
    """Record how often the function has failed without progress beyond ``iteration``."""

    failures: int
    iteration: int


@dataclass(frozen=True)
class Fail:
    """End the job: its function, its environment or its data is at fault."""

    reason: str
    message: str
    traceback: str = ""


@dataclass(frozen=True)
class MoveTo:
    """Bring the job to another state, with a line of its history."""

    state: JobState
    message: str
    generation: int | None = None


@dataclass(frozen=True)
class Record:
    """Add a line to the job's history."""

    kind: str
    message: str
    generation: int | None = None


@dataclass(frozen=True)
class TellPlanner:
    """Tell the planner that a fact on which plans rest has changed."""

    trigger: str


Instruction = (
    Retire | CallReady | BeginTraining | BeginHandover | TellToSuspend | BeginMeasuring | BecomeLive | GoBack
    | NoPause | CountFailure | Fail | MoveTo | Record | TellPlanner
)  # fmt: skip
