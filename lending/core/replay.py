"""Replay of the lending rule over a usage curve: servers on loan and servers missing.

Sample t is the mean usage of the period that ends at instant t. The decision at instant t holds for the
following period, whose usage is sample t + 1. A server missing then was not foreseen.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from lending.core.lending_rule import LendingRule
from lending.core.rule_over_time import (
    FloatArray,
    IntArray,
    expected_usage,
    shortfalls,
    targets,
    worth_lending,
)


@dataclass(frozen=True, slots=True)
class LendingHistory:
    """Numbers of servers at every instant, each of shape (n,).

    ``on_loan``: away just before the decision; ``being_returned``: those of them already asked back. ``lent``
    and ``reclaimed``: servers that the decision lends or asks back. ``shortfall``: servers missing in the
    period that ends at the instant.
    """

    on_loan: IntArray
    being_returned: IntArray
    lent: IntArray
    reclaimed: IntArray
    shortfall: IntArray


def follow(
    rule: LendingRule,
    usage: ArrayLike,
    forecasts: ArrayLike | None = None,
    *,
    periods_to_return: int = 0,
    hold_periods: int = 0,
) -> LendingHistory:
    """Return the rule's decisions at every instant, starting with no server on loan.

    ``usage`` and ``forecasts`` have shape (n,). Entry t of ``forecasts`` is the forecast of sample t + 1,
    made at instant t; NaN: none. A server asked back is at home ``periods_to_return`` periods later; 0: at
    once. ``hold_periods``: minimum hold time of a server (`LendingRule.decide`); 0 is the published rule.

    Raises ValueError for usage outside 0 to 1, shapes that differ or a negative number of periods.
    """
    if forecasts is not None and np.shape(forecasts) != np.shape(usage):
        raise ValueError(f"{np.size(forecasts)} forecasts do not fit {np.size(usage)} samples of usage")
    if periods_to_return < 0:
        raise ValueError(f"servers cannot be back {-periods_to_return} periods before they are asked for")
    if hold_periods < 0:
        raise ValueError(f"servers cannot stay for {hold_periods} periods")
    expected = expected_usage(rule, usage, forecasts)
    peaks = recent_peaks(expected, hold_periods)
    allowed, needed = targets(rule, usage, forecasts).tolist(), targets(rule, usage).tolist()
    count = len(allowed)
    on_loan, being_returned, lent, reclaimed = (np.zeros(count, dtype=np.int64) for _ in range(4))
    coming_home = np.zeros(count + periods_to_return + 1, dtype=np.int64)
    staying = returning = 0
    for instant, worth in enumerate(worth_lending(rule, expected, peaks).tolist()):
        returning -= int(coming_home[instant])
        on_loan[instant], being_returned[instant] = staying + returning, returning
        # Servers that have been on loan longest return first.
        fresh = int(lent[max(0, instant - hold_periods) : instant].sum()) if hold_periods else 0
        measured = max(0, staying - needed[instant])
        foreseen = max(0, staying - allowed[instant]) - measured
        lent[instant] = max(0, worth - staying - returning)
        reclaimed[instant] = measured + min(foreseen, max(0, staying - fresh - measured))
        staying += int(lent[instant] - reclaimed[instant])
        returning += int(reclaimed[instant])
        # 0 periods to return: at home for the whole following period.
        coming_home[instant + 1 + periods_to_return] = reclaimed[instant]
    return LendingHistory(on_loan, being_returned, lent, reclaimed, shortfalls(rule, usage, on_loan))


def recent_peaks(expected: FloatArray, periods: int) -> FloatArray:
    """Return the maximum of each value and the ``periods`` values before it, shape (n,)."""
    if not expected.size:
        return expected
    padded = np.concatenate((np.full(periods, -np.inf), expected))
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, periods + 1).max(axis=1))
