"""One run of Gemini's evaluation: a job under random failures."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from simulation.engine.run import Progress
from simulation.reproduction.gemini import model, results
from simulation.reproduction.gemini.failing_job import JobUnderFailures
from simulation.reproduction.sources import ENGINE, modules_digest
from simulation.reproduction.store import RunResult

FORMAT = 1


@dataclass(frozen=True, slots=True)
class FailureSpec:
    """GPT-2 100B's times on so many machines, each of which fails 0.015 times a day.

    ``in_memory``: Gemini with two replicas; otherwise a durable state every three hours (Strawman).
    ``hardware_share``: of failures that take a machine along. ``standby``: whether spare servers are there.
    """

    machines: int
    in_memory: bool = True
    hardware_share: float = 0.5
    standby: bool = True
    days: float = 30.0
    seed: int = 0

    @property
    def name(self) -> str:
        """Scheme and machines."""
        return f"{'Gemini' if self.in_memory else 'Strawman'} on {self.machines:,} machines"

    @property
    def place(self) -> tuple[Any, ...]:
        """Runs share no workload."""
        return self.machines, self.in_memory, self.hardware_share, self.standby, self.seed

    def described(self) -> str:
        """How the numbers of this run are made, in one line."""
        late = f"a server after {model.REPLACEMENT_SECONDS:g} s"
        return (
            f"simulated, {self.name}; {self.days:g} days; seed {self.seed}; "
            f"{model.FAILURES_A_DAY:g} failures of a machine a day, {self.hardware_share:.0%} of them with "
            f"its memory; {'spare servers at once' if self.standby else late}"
        )

    def as_json(self) -> dict[str, object]:
        """The fields as plain values."""
        return asdict(self)

    def key(self) -> str:
        """A name for the result: equal for equal settings and program."""
        determined = {
            "format": FORMAT,
            "spec": self.as_json(),
            "code": modules_digest(*ENGINE, results.__name__, model.__name__),
        }
        return hashlib.sha256(json.dumps(determined, sort_keys=True).encode()).hexdigest()[:24]

    def job(self) -> JobUnderFailures:
        """The job with the published times."""
        return JobUnderFailures(
            machines=self.machines,
            replicas=2,
            in_memory=self.in_memory,
            days=self.days,
            failures_a_day=model.FAILURES_A_DAY,
            iteration_seconds=model.gpt2_100b(self.machines).iteration_seconds,
            hardware_share=self.hardware_share,
            standby=self.standby,
            detection_seconds=model.DETECTION_SECONDS,
            serialization_seconds=2 * model.SERIALIZATION_SECONDS if self.in_memory else 0.0,
            warm_up_seconds=model.WARM_UP_SECONDS,
            replacement_seconds=model.REPLACEMENT_SECONDS,
            memory_load_seconds=model.RETRIEVAL_SECONDS,
            # The notebook's storage grows with the cluster: a state takes as long as on 16 machines.
            durable_load_seconds=model.gpt2_100b().storage_seconds,
            durable_period_seconds=model.DURABLE_PERIOD_SECONDS,
        )

    def run(self, progress: Progress | None = None) -> RunResult:
        """The run to its end."""
        return results.result_of(self.job(), self.seed)
