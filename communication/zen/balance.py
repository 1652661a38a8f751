"""The balance of partitions: imbalance ratios and their expected values (Zen 3.3.3, Theorem 3.2)."""

from __future__ import annotations

from collections.abc import Sequence
from math import log, sqrt

import numpy as np
from numpy.typing import NDArray

#: The paper's tensors stay below this, as does any tensor with enough non-zeros in each part.
GUARANTEED = 1.1


def push_imbalance(counts: Sequence[NDArray[np.int64]]) -> float:
    """Return the fullest part over the mean, over all workers (Definition 3.6). ``counts``: non-zeros of each
    worker by part."""
    return max((_fullest_over_mean(each) for each in counts), default=1.0)


def pull_imbalance(aggregated: NDArray[np.int64]) -> float:
    """Return the fullest server over the mean (Definition 3.6). ``aggregated``: units of each server after
    aggregation."""
    return _fullest_over_mean(aggregated)


def _fullest_over_mean(counts: NDArray[np.int64]) -> float:
    total = int(counts.sum())
    return len(counts) * int(counts.max()) / total if total else 1.0


def expected_imbalance(nonzeros: float, parts: int) -> float:
    """Return the expected imbalance of a hash: 1 + sqrt(2 ln n / b) with b non-zeros per part; at most n, and
    at least that of one non-zero in the fullest part."""
    if parts <= 1:
        return 1.0
    if nonzeros <= 0:
        return float(parts)
    estimate = 1.0 + sqrt(2.0 * log(parts) * parts / nonzeros)
    return min(float(parts), max(estimate, parts / nonzeros))


def enough_nonzeros(parts: int, imbalance: float = GUARANTEED) -> float:
    """Return the total non-zeros from which the expected imbalance is at most ``imbalance``: 200 n ln n for
    1.1."""
    return 2.0 * log(parts) * parts / (imbalance - 1.0) ** 2
