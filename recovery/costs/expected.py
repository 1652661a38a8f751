"""The throughput that a promise may use when servers fail: the measured one times 1 - λ·O.

Live admission and the simulator call the same function.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from math import ceil, exp, inf

from recovery.costs.failures import SECONDS_PER_DAY, FailureCost, effective_share

#: Lowest share of the measured throughput. A level that failures would consume entirely stays usable, because
#: best-effort jobs run there.
LEAST_SHARE = 1e-6


def failures_beyond(mean: float, covered: int) -> float:
    """Return E[max(0, X - covered)] for X ~ Poisson(mean): those not paid by a slack for ``covered``."""
    beyond, probability = mean - covered, exp(-mean)
    for failures in range(covered):
        beyond += (covered - failures) * probability
        probability *= mean / (failures + 1)
    return min(mean, max(0.0, beyond))


@dataclass(frozen=True, slots=True)
class ExpectedFailures:
    """The failures that an operator expects of the servers of one GPU kind.

    ``a_day``: failures per server. ``server_gpus``: GPUs of the largest server. ``covered``: failures of each
    promise that its slack pays in full; only failures beyond these reduce the throughput.
    """

    a_day: float
    server_gpus: int
    covered: int = 0

    def share(self, gpus: int, cost: FailureCost, within_seconds: float = inf) -> float:
        """Return the share of the measured throughput on ``gpus`` GPUs that may be promised.

        ``cost``: of one failure. ``within_seconds``: from submission to the deadline; infinity when no slack
        is reserved for failures.
        """
        servers = ceil(gpus / max(1, self.server_gpus))
        a_day = servers * self.a_day
        if self.covered and within_seconds < inf and within_seconds > 0.0:
            days = within_seconds / SECONDS_PER_DAY
            a_day = failures_beyond(a_day * days, self.covered) / days
        return max(LEAST_SHARE, effective_share(a_day, cost))

    def shares(self, gpus: Iterable[int], cost: FailureCost, within_seconds: float = inf) -> list[float]:
        """Return the share of each level. It never rises with the number of GPUs."""
        return [self.share(one, cost, within_seconds) for one in gpus]
