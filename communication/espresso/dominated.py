"""Dominated options: those that need at least as much of every resource as another."""

from __future__ import annotations

import numpy as np

from communication.profiles.arrays import Floats, Integers

_EQUAL_SECONDS = 1e-12


def tie_order(
    columns: Integers, compressions: Integers, between_bytes: Floats, within_bytes: Floats
) -> Integers:
    """Return columns in tie-breaking order: fewer compressions, fewer bytes between servers, fewer bytes
    within them, then the decision tree's order."""
    keys = (columns, within_bytes[columns], between_bytes[columns], compressions[columns])
    return columns[np.lexsort(keys)]


def undominated(totals: Floats, columns: Integers) -> Integers:
    """Return the columns that no other one dominates, in the given order; of equal ones the first.

    ``totals``: seconds by option and resource. Dropping dominated ones is a heuristic, because they may begin
    with another resource.
    """
    taken = totals[columns]
    left = np.lexsort((np.arange(len(columns)), taken.sum(axis=1)))
    undominated = []
    while left.size:
        # No option with a larger total needs less of each resource.
        best, rest = left[0], left[1:]
        undominated.append(best)
        left = rest[np.any(taken[rest] < taken[best] - _EQUAL_SECONDS, axis=1)]
    return columns[np.sort(np.array(undominated, dtype=np.int64))]
