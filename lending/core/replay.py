"""The lending rule followed over a usage curve: what would be on loan, and what would be missing (spec 2.1,
2.2).

Sample t is the mean usage of the period that ends at instant t. What is decided at instant t must do for the
period that follows, whose usage is sample t + 1: a server that is missing then is missing because nobody
foresaw it.
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
    """Servers at every instant, each of shape (n,).

    ``on_loan``: away just before the decision, ``being_returned`` of them asked back before. ``lent`` and
    ``reclaimed``: what the decision moves or asks back. ``shortfall``: missing in the period that ends at the
    instant.
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
    """What the rule does at every instant, beginning with no server on loan.

    ``usage`` has shape (n,), and so have ``forecasts``: entry t is what is expected, at instant t, of the
    next sample; not a number where there is none. A server asked back is at home ``periods_to_return``
    periods later; 0: at once. ``hold_periods``: the least time that a server stays where it is
    (`LendingRule.decide`); 0 is the published rule.

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
        # The first to come back are those that have been away longest.
        fresh = int(lent[max(0, instant - hold_periods) : instant].sum()) if hold_periods else 0
        measured = max(0, staying - needed[instant])
        foreseen = max(0, staying - allowed[instant]) - measured
        lent[instant] = max(0, worth - staying - returning)
        reclaimed[instant] = measured + min(foreseen, max(0, staying - fresh - measured))
        staying += int(lent[instant] - reclaimed[instant])
        returning += int(reclaimed[instant])
        # At once means: at home through the whole period that follows.
        coming_home[instant + 1 + periods_to_return] = reclaimed[instant]
    return LendingHistory(on_loan, being_returned, lent, reclaimed, shortfalls(rule, usage, on_loan))


def recent_peaks(expected: FloatArray, periods: int) -> FloatArray:
    """The largest of the last ``periods`` values before each instant and its own, shape (n,)."""
    if not expected.size:
        return expected
    padded = np.concatenate((np.full(periods, -np.inf), expected))
    return np.asarray(np.lib.stride_tricks.sliding_window_view(padded, periods + 1).max(axis=1))
