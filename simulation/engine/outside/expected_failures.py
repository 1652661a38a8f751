"""What who plans expects failures to take: curves of a pool without it (decision 0028)."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache

import numpy as np

from recovery.costs.expected import ExpectedFailures
from recovery.costs.failures import FailureCost
from scheduling.core.question.columns import NO_LEVEL, CurveColumns
from simulation.engine.asked.settings import PoolSize, SimulationSettings
from simulation.engine.outside.failures import one_failure
from simulation.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class PoolFailures:
    """What is expected of a pool's servers, and what one failure costs a job."""

    expected: ExpectedFailures
    cost: FailureCost

    def lowered(self, planned: CurveColumns, workload: Workload) -> CurveColumns:
        """The curves with the throughput that may be promised. A job's levels end at the first without
        gain."""
        until = workload.deadline_at - workload.submitted_at
        if not self.expected.covered:
            until = np.full(until.size, np.inf)  # no slack pays for anything

        @cache
        def share(gpus: int, seconds: float) -> float:
            return self.expected.share(gpus, self.cost, seconds)

        inside = planned.levels != NO_LEVEL
        throughput = planned.throughput.copy()
        for row, column in zip(*np.nonzero(inside), strict=True):
            throughput[row, column] *= share(int(planned.levels[row, column]), float(until[row]))
        without_gain = np.diff(throughput, axis=1, prepend=0.0) <= 0.0
        kept = inside & (np.cumsum(without_gain, axis=1) == 0)
        return CurveColumns(
            np.where(kept, planned.levels, NO_LEVEL),
            np.where(kept, throughput, 0.0),
            np.where(kept, planned.pause, 0.0),
        )


def failures_of_pool(
    settings: SimulationSettings, workload: Workload, size: PoolSize, *, promised: bool = True
) -> PoolFailures | None:
    """None where no failure is expected. ``promised``: whether promises rest on the pool; failures that the
    slack of the reserve pays are not expected besides."""
    if not settings.failures_per_server_day:
        return None
    covered = settings.reserve_servers if promised else 0
    expected = ExpectedFailures(settings.failures_per_server_day, size.gpus_per_server, covered)
    return PoolFailures(expected, one_failure(settings, workload))
