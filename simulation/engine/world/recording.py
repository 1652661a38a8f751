"""Records of a run, collected while it runs and turned into arrays at its end."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from simulation.outcome import AllocationHistory, ClusterHistory

FACTS = (
    "time",
    "gpus",
    "gpus_promised",
    "gpus_unpromised",
    "jobs_running",
    "jobs_waiting",
    "cluster_efficiency",
    "decision_seconds",
)


@dataclass
class Recorder:
    """Rows of the cluster's history and of allocations, ascending in time."""

    cluster: list[tuple[float, ...]] = field(default_factory=list)
    allocations: list[tuple[float, int, int]] = field(default_factory=list)
    counts: dict[str, int] = field(
        default_factory=lambda: {
            "rescales": 0,
            "migrations": 0,
            "preemptions": 0,
            "decisions": 0,
            "failures": 0,
        }
    )

    def count(self, what: str, by: int = 1) -> None:
        """Add ``by`` to a count."""
        self.counts[what] = self.counts.get(what, 0) + by

    def allocation(self, time: float, row: int, gpus: int) -> None:
        """Record that the job holds ``gpus`` GPUs from ``time`` on."""
        self.allocations.append((time, row, gpus))

    def instant(self, *facts: float) -> None:
        """Record the cluster's state; a later row of the same instant replaces the earlier one."""
        if self.cluster and self.cluster[-1][0] == facts[0]:
            seconds = self.cluster[-1][-1]
            self.cluster[-1] = (*facts[:-1], facts[-1] + seconds)
        else:
            self.cluster.append(facts)

    def cluster_history(self) -> ClusterHistory:
        """Return all instants as columns."""
        table = np.array(self.cluster, dtype=np.float64).reshape(len(self.cluster), len(FACTS))
        whole = table[:, 1:6].astype(np.int64)
        return ClusterHistory(
            time=table[:, 0],
            gpus=whole[:, 0],
            gpus_promised=whole[:, 1],
            gpus_unpromised=whole[:, 2],
            jobs_running=whole[:, 3],
            jobs_waiting=whole[:, 4],
            cluster_efficiency=table[:, 6],
            decision_seconds=table[:, 7],
        )

    def allocation_history(self) -> AllocationHistory:
        """Return all changes of GPUs as columns."""
        table = np.array(self.allocations, dtype=np.float64).reshape(len(self.allocations), 3)
        return AllocationHistory(table[:, 0], table[:, 1].astype(np.int64), table[:, 2].astype(np.int64))
