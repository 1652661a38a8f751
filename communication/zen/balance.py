"""How evenly partitions are filled: imbalance ratios and what to expect of them (Zen 3.3.3, Theorem 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

#: The paper's own tensors stay below this; so does any with enough non-zeros in each part.
GUARANTEED = 1.1


def push_imbalance(counts: Sequence[NDArray[np.int64]]) -> float:
    """Definition 3.6: the fullest part over the mean, over all workers. ``counts``: non-zeros of each worker
    by part."""
    return max((_fullest_over_mean(each) for each in counts), default=1.0)


def pull_imbalance(aggregated: NDArray[np.int64]) -> float:
    """Definition 3.6: the fullest server over the mean. ``aggregated``: units of each server after
    aggregation."""
    return _fullest_over_mean(aggregated)


def _fullest_over_mean(counts: NDArray[np.int64]) -> float:
    total = int(counts.sum())
    return len(counts) * int(counts.max()) / total if total else 1.0


def expected_imbalance(nonzeros: float, parts: int) -> float:
    """The imbalance that a hash leaves: 1 + sqrt(2 ln n / b) with b non-zeros for each part; at most n, and
    no less than with one non-zero in the fullest part."""
    if parts <= 1:
        return 1.0
    if nonzeros <= 0:
        return float(parts)
    estimate = 1.0 + sqrt(2.0 * log(parts) * parts / nonzeros)
    return min(float(parts), max(estimate, parts / nonzeros))


def enough_nonzeros(parts: int, imbalance: float = GUARANTEED) -> float:
    """Non-zeros, all parts together, from which the expected imbalance is no more than this: 200 n ln n for
    1.1."""
    return 2.0 * log(parts) * parts / (imbalance - 1.0) ** 2
