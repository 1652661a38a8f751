"""Size of the pool of standby servers (an extension of Gemini)."""

from __future__ import annotations

from math import exp, isfinite

#: Seconds to replace a server: the middle of the published 4 to 7 minutes.
REPLACEMENT_SECONDS = 360.0
#: Accepted probability of an empty pool.
ACCEPTED_RISK = 0.01
SECONDS_PER_DAY = 86_400.0


def probability_of_more(mean: float, count: int) -> float:
    """Return P[X > count] for X ~ Poisson(mean)."""
    term, total = exp(-mean), 0.0
    for number in range(count + 1):
        total += term
        term *= mean / (number + 1)
    return max(0.0, 1.0 - total)


def standby_servers(
    servers: int,
    *,
    failures_a_day: float,
    replacement_seconds: float = REPLACEMENT_SECONDS,
    accepted_risk: float = ACCEPTED_RISK,
) -> int:
    """Return the fewest spare servers with a probability below ``accepted_risk`` that more fail in one
    replacement time.

    ``failures_a_day``: of one server. Raises ValueError for negative figures, and for a risk outside (0, 1).
    """
    for name, value in (("failures_a_day", failures_a_day), ("replacement_seconds", replacement_seconds)):
        if not (isfinite(value) and value >= 0.0):
            raise ValueError(f"{name} must be a number that is not negative, not {value}")
    if not 0.0 < accepted_risk < 1.0:
        raise ValueError(f"accepted_risk must lie between 0 and 1, not {accepted_risk}")
    mean = max(0, servers) * failures_a_day * replacement_seconds / SECONDS_PER_DAY
    spare = 0
    while probability_of_more(mean, spare) >= accepted_risk and spare < servers:
        spare += 1
    return spare
