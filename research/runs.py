"""What every run of a paper can be asked: its name, what determines its result, and the run itself."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from research.store import RunResult
from simulation.engine.asked.settings import SimulationSettings
from simulation.engine.run import Progress, Simulation
from simulation.outcome import RunOutcome
from simulation.workloads.workload import Workload


class RunSpec(Hashable, Protocol):
    """One run that a figure asks for. Equal ones are made once."""

    @property
    def name(self) -> str:
        """The run in a few words, shown while it is made."""

    @property
    def place(self) -> tuple[Any, ...]:
        """What sorts runs: those that read the same workload stand together, so that it is read once."""

    def described(self) -> str:
        """How the numbers of this run are made, in one line."""

    def as_json(self) -> dict[str, Any]:
        """The fields as plain values."""

    def key(self) -> str:
        """A name for the result: equal for equal jobs, settings and program. Raises TraceError for a trace
        that is missing or unreadable."""

    def run(self, progress: Progress | None = None) -> RunResult:
        """The run to its end. Raises KeyboardInterrupt where it was ended early, TraceError for a missing
        trace."""


def simulated(workload: Workload, settings: SimulationSettings, progress: Progress | None) -> RunOutcome:
    """The outcome of a simulation. Raises KeyboardInterrupt where it was ended early."""
    outcome = Simulation(workload, settings, progress=progress).run()
    if outcome.interrupted:
        raise KeyboardInterrupt
    return outcome
