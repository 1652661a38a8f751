"""Runs of Espresso's evaluation: a selection beside its baselines, bounds and restricted variants."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, dataclass, replace
from typing import Any

from research.espresso import model, results
from research.sources import modules_digest
from research.store import RunResult
from simulation.engine.run import Progress

FORMAT = 1


@dataclass(frozen=True, slots=True)
class SelectionSpec:
    """One workload of the throughput figure on a number of servers of 8 GPUs.

    ``codec``, ``platform``: override the workload's own; on another platform links have its rates.
    ``flat``: allow flat schemes too. ``variants``: add each restriction of the ablation.
    """

    workload: str
    servers: int = 8
    codec: str = ""
    platform: str = ""
    flat: bool = False
    variants: bool = False

    @property
    def name(self) -> str:
        """Model, codec and GPUs."""
        used = self.used()
        return (
            f"{used.model} with {used.codec} on {self.servers * model.GPUS_PER_SERVER} GPUs, {used.platform}"
        )

    @property
    def place(self) -> tuple[Any, ...]:
        """Constant: runs share nothing."""
        return self.workload, self.codec, self.platform, self.servers, self.flat, self.variants

    def used(self) -> model.Workload:
        """The workload with the overrides applied."""
        own = model.WORKLOADS[self.workload]
        changed = replace(own, codec=self.codec or own.codec)
        if not self.platform or self.platform == own.platform:
            return changed
        return replace(changed, platform=self.platform, between_gbps=model.BETWEEN_GBPS[self.platform])

    def described(self) -> str:
        """Return the origin of this run's numbers, in one line."""
        used = self.used()
        return (
            f"timeline of communication/espresso, {self.name}; {used.between_gbps:g} Gbps between servers "
            f"and {used.one_gpu_seconds:g} s on one GPU (fitted); processors encode {used.cpu_gbps:g} Gbps"
            f"{'; flat schemes allowed' if self.flat else ''}"
        )

    def as_json(self) -> dict[str, object]:
        """Return the fields as plain values."""
        return asdict(self)

    def key(self) -> str:
        """Return the result's key: equal for equal settings and program."""
        determined = {
            "format": FORMAT,
            "spec": self.as_json(),
            "code": modules_digest(results.__name__, model.__name__),
        }
        return hashlib.sha256(json.dumps(determined, sort_keys=True).encode()).hexdigest()[:24]

    def run(self, progress: Progress | None = None) -> RunResult:
        """Run to the end."""
        return results.result_of(model.question(self.used(), self.servers, flat=self.flat), self.variants)
