"""Expected failures in planning: a pool's curves lowered by the throughput they cost (decision 0028)."""

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
    """Expected failures of a pool's servers, and the cost of one failure to a job."""

    expected: ExpectedFailures
    cost: FailureCost

    def lowered(self, planned: CurveColumns, workload: Workload) -> CurveColumns:
        """Return the curves with the throughput that may be promised. A job's levels end before the first
        without gain."""
        until = workload.deadline_at - workload.submitted_at
        if not self.expected.covered:
            until = np.full(until.size, np.inf)  # no slack pays for a failure

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
    """Return the pool's expected failures, None if there are none. ``promised``: whether promises rest on the
    pool; failures paid for by the reserve's slack are not counted again."""
    if not settings.failures_per_server_day:
        return None
    covered = settings.reserve_servers if promised else 0
    expected = ExpectedFailures(settings.failures_per_server_day, size.gpus_per_server, covered)
    return PoolFailures(expected, one_failure(settings, workload))
