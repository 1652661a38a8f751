"""The lending rule evaluated at many instants, as arrays of shape (n,)."""

from __future__ import annotations

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lending.core.lending_rule import ROUNDING_GUARD, LendingRule

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]


def targets(rule: LendingRule, usage: ArrayLike, forecasts: ArrayLike | None = None) -> IntArray:
    """Return `LendingRule.target` at each instant; NaN means no forecast.

    Raises ValueError for usage outside 0 to 1 or shapes that do not fit.
    """
    kept = _whole_servers(rule, expected_usage(rule, usage, forecasts) * rule.servers)
    return np.maximum(0, rule.servers - rule.reserve - kept)


def worth_lending(rule: LendingRule, expected: FloatArray, recent_peaks: FloatArray) -> IntArray:
    """Return `LendingRule.worth_lending` at each instant. ``expected`` is the result of `expected_usage`,
    ``recent_peaks`` its recent peaks."""
    kept = _whole_servers(rule, np.clip(expected, 0.0, 1.0) * rule.servers)
    highest = np.clip(np.maximum(expected, recent_peaks), 0.0, 1.0)
    careful = _whole_servers(rule, (highest + rule.hysteresis_fraction) * rule.servers)
    return np.maximum(0, rule.servers - rule.reserve - np.maximum(kept, careful))


def expected_usage(rule: LendingRule, usage: ArrayLike, forecasts: ArrayLike | None = None) -> FloatArray:
    """Return the larger of usage and forecast with its margin at each instant."""
    expected = _checked_usages(usage)
    if forecasts is None:
        return expected
    return np.fmax(expected, np.asarray(forecasts, dtype=np.float64) + rule.forecast_margin_fraction)


def shortfalls(rule: LendingRule, usage: ArrayLike, on_loan: ArrayLike) -> IntArray:
    """Return `LendingRule.shortfall` at each instant. Raises ValueError for usage outside 0 to 1."""
    at_home = rule.servers - np.asarray(on_loan, dtype=np.int64)
    return np.maximum(0, _whole_servers(rule, _checked_usages(usage) * rule.servers) - at_home)


def _whole_servers(rule: LendingRule, servers: FloatArray) -> IntArray:
    """Round up and clip to 0 to ``rule.servers``."""
    return np.clip(np.ceil(servers - ROUNDING_GUARD), 0, rule.servers).astype(np.int64)


def _checked_usages(usage: ArrayLike) -> FloatArray:
    values = np.asarray(usage, dtype=np.float64)
    wrong = ~((values >= 0.0) & (values <= 1.0))
    if wrong.any():
        raise ValueError(f"usage is {values[wrong][0]}; it is a share of GPUs, from 0 to 1")
    return values
