"""What is to be done about a job. Each is one small change of rows; a list of them is carried out in order,
in one transaction.

Generations are named by their numbers.
"""

from __future__ import annotations

from dataclasses import dataclass

from scheduling.choices import JobState, RetireReason


@dataclass(frozen=True)
class Retire:
    """End a generation: its agents stop its workers, and its GPUs are free once they confirm it."""

    generation: int
    because: RetireReason
    reason: str


@dataclass(frozen=True)
class CallReady:
    """Note that every worker of a coming generation waits for its state."""

    generation: int


@dataclass(frozen=True)
class BeginTraining:
    """Let a coming generation without a living predecessor start from the last durable state.

    ``seconds``: how long that may take from now; None to leave the bound as it is.
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
    """Let the living generation write its state and leave its GPUs, within ``seconds``."""

    generation: int
    seconds: float


@dataclass(frozen=True)
class BeginMeasuring:
    """Note that a measurement has begun."""

    generation: int


@dataclass(frozen=True)
class BecomeLive:
    """Note that a generation trains: rank 0 has done ``iteration``, its first."""

    generation: int
    iteration: int


@dataclass(frozen=True)
class GoBack:
    """Count the job's progress from its last durable state."""

    iteration: int


@dataclass(frozen=True)
class NoPause:
    """Expect no change of generation any more."""


@dataclass(frozen=True)
class CountFailure:
    """Note how often the function has failed without getting further than ``iteration``."""

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
    """Bring the job to another state, with what its history says of it."""

    state: JobState
    message: str
    generation: int | None = None


@dataclass(frozen=True)
class Record:
    """A line of the job's history."""

    kind: str
    message: str
    generation: int | None = None


@dataclass(frozen=True)
class TellPlanner:
    """A fact that plans rest on has changed."""

    trigger: str


Instruction = (
    Retire | CallReady | BeginTraining | BeginHandover | TellToSuspend | BeginMeasuring | BecomeLive | GoBack
    | NoPause | CountFailure | Fail | MoveTo | Record | TellPlanner
)  # fmt: skip
