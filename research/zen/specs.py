"""The only simulated run of Zen's evaluation: training while gradients are lost (Figure 3.14)."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass
from typing import Any

from research.sources import modules_digest
from research.store import RunResult
from research.zen import two_towers
from simulation.engine.run import Progress

FORMAT = 1


@dataclass(frozen=True, slots=True)
class TrainingSpec:
    """The two-tower model, trained with one scheme.

    ``scheme``: `dense`, `zen` or `strawman`. ``memory``: slots of the strawman for each non-zero.
    """

    scheme: str
    memory: float = 0.0
    steps: int = 400
    seed: int = 0

    @property
    def name(self) -> str:
        """The scheme, and the strawman's memory."""
        return f"{self.memory:g}|I| strawman" if self.scheme == "strawman" else self.scheme

    @property
    def place(self) -> tuple[Any, ...]:
        """Runs of one seed share their clicks."""
        return self.seed, self.scheme, self.memory, self.steps

    def described(self) -> str:
        """Return the origin of this run's numbers, in one line."""
        return (
            f"{two_towers.WORKERS} workers train a two-tower model on synthetic clicks in memory, "
            f"{self.name}; {self.steps} steps; seed {self.seed}"
        )

    def as_json(self) -> dict[str, object]:
        """Return the fields as plain values."""
        return asdict(self)

    def key(self) -> str:
        """Return the result's key: equal for equal settings and program."""
        determined = {
            "format": FORMAT,
            "spec": self.as_json(),
            "code": modules_digest(two_towers.__name__, __name__),
        }
        return hashlib.sha256(json.dumps(determined, sort_keys=True).encode()).hexdigest()[:24]

    def run(self, progress: Progress | None = None) -> RunResult:
        """Run to the end: the loss after each step, and the share of gradients that was lost."""
        trained = two_towers.train(self.scheme, self.memory, self.steps, self.seed)
        return RunResult(
            summary={"loss": trained.losses[-1]},
            facts={"lost_share": trained.lost_share},
            series={"losses": trained.losses},
        )
