"""The lending rule followed over a usage curve: what would be on loan, and what would be missing (spec 2.1, 2.2).

Sample t is the mean usage of the period that ends at instant t. What is decided at instant t must do for the period
that follows, whose usage is sample t + 1: a server that is missing then is missing because nobody foresaw it.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike

from cluster.core.lending import IntArray, LendingRule


@dataclass(frozen=True, slots=True)
class LendingHistory:
    """Servers at every instant, each of shape (n,).

    ``on_loan``: away just before the decision, ``being_returned`` of them asked back before. ``lent`` and ``reclaimed``:
    what the decision moves or asks back. ``shortfall``: missing in the period that ends at the instant.
    """

    on_loan: IntArray
    being_returned: IntArray
    lent: IntArray
    reclaimed: IntArray
    shortfall: IntArray


def follow(
    rule: LendingRule, usage: ArrayLike, forecasts: ArrayLike | None = None, *, periods_to_return: int = 0
) -> LendingHistory:
    """What the rule does at every instant, beginning with no server on loan.

    ``usage`` has shape (n,), and so have ``forecasts``: entry t is what is expected, at instant t, of the next
    sample; not a number where there is none. A server asked back is at home ``periods_to_return`` periods later; 0:
    at once.

    Raises ValueError for usage outside 0 to 1, shapes that differ or a negative number of periods.
    """
    if forecasts is not None and np.shape(forecasts) != np.shape(usage):
        raise ValueError(f"{np.size(forecasts)} forecasts do not fit {np.size(usage)} samples of usage")
    if periods_to_return < 0:
        raise ValueError(f"servers cannot be back {-periods_to_return} periods before they are asked for")
    targets = rule.targets(usage, forecasts)
    count = targets.size
    on_loan, being_returned, lent, reclaimed = (np.zeros(count, dtype=np.int64) for _ in range(4))
    coming_home = np.zeros(count + periods_to_return + 1, dtype=np.int64)
    staying = returning = 0
    for instant, target in enumerate(targets.tolist()):
        returning -= int(coming_home[instant])
        on_loan[instant], being_returned[instant] = staying + returning, returning
        lent[instant] = max(0, target - staying - returning)
        reclaimed[instant] = max(0, staying - target)
        staying += int(lent[instant] - reclaimed[instant])
        returning += int(reclaimed[instant])
        # At once means: at home through the whole period that follows.
        coming_home[instant + 1 + periods_to_return] = reclaimed[instant]
    return LendingHistory(on_loan, being_returned, lent, reclaimed, rule.shortfalls(usage, on_loan))
