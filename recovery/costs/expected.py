"""What a promise may count on where servers fail: the measured throughput times 1 - λ·O (Gemini's
specification, section 7).

Live admission and the simulator call the same function.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, exp, inf

from recovery.costs.failures import SECONDS_PER_DAY, FailureCost, effective_share

#: A level on which failures would take all time stays a level: best-effort jobs run there. Nothing is
#: promised at a millionth of the speed.
LEAST_SHARE = 1e-6


def failures_beyond(mean: float, covered: int) -> float:
    """E[max(0, X - covered)] for X ~ Poisson(mean): failures that a slack for ``covered`` does not pay."""
    beyond, probability = mean - covered, exp(-mean)
    for failures in range(covered):
        beyond += (covered - failures) * probability
        probability *= mean / (failures + 1)
    return min(mean, max(0.0, beyond))


@dataclass(frozen=True, slots=True)
class ExpectedFailures:
    """What an operator expects of the servers of one kind.

    ``a_day``: failures of one server. ``server_gpus``: GPUs of the largest. ``covered``: failures of each
    promise that its slack pays in full; only those beyond are expected besides.
    """

    a_day: float
    server_gpus: int
    covered: int = 0

    def share(self, gpus: int, cost: FailureCost, within_seconds: float = inf) -> float:
        """The share of the measured throughput on ``gpus`` GPUs that may be promised.

        ``cost``: of one failure. ``within_seconds``: from the submission until the deadline; infinity where
        nothing is kept for failures.
        """
        servers = ceil(gpus / max(1, self.server_gpus))
        a_day = servers * self.a_day
        if self.covered and within_seconds < inf and within_seconds > 0.0:
            days = within_seconds / SECONDS_PER_DAY
            a_day = failures_beyond(a_day * days, self.covered) / days
        return max(LEAST_SHARE, effective_share(a_day, cost))

    def shares(self, gpus: Iterable[int], cost: FailureCost, within_seconds: float = inf) -> list[float]:
        """The same for several levels. It never rises with the number of GPUs."""
        return [self.share(one, cost, within_seconds) for one in gpus]
