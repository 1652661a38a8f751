"""The interface of a paper's runs: name, identity of the result, and the run itself."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Protocol

from research.store import RunResult
from simulation.engine.asked.settings import SimulationSettings
from simulation.engine.run import Progress, Simulation
from simulation.outcome import RunOutcome
from simulation.workloads.workload import Workload


class RunSpec(Hashable, Protocol):
    """One run that a figure needs. Equal ones are made once."""

    @property
    def name(self) -> str:
        """The run in a few words, shown while it is made."""

    @property
    def place(self) -> tuple[Any, ...]:
        """Sort key of runs: those on the same workload are adjacent, so that it is read once."""

    def described(self) -> str:
        """Return the origin of this run's numbers, in one line."""

    def as_json(self) -> dict[str, Any]:
        """Return the fields as plain values."""

    def key(self) -> str:
        """Return the result's key: equal for equal jobs, settings and program. Raises TraceError for a
        missing or unreadable trace."""

    def run(self, progress: Progress | None = None) -> RunResult:
        """Run to the end. Raises KeyboardInterrupt if it was ended early, TraceError for a missing trace."""


def simulated(workload: Workload, settings: SimulationSettings, progress: Progress | None) -> RunOutcome:
    """Return the outcome of a simulation. Raises KeyboardInterrupt if it was ended early."""
    outcome = Simulation(workload, settings, progress=progress).run()
    if outcome.interrupted:
        raise KeyboardInterrupt
    return outcome
