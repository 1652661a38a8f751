"""Accuracy of forecasts, and their effect on lending (Lyra section 3.6)."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import ArrayLike

from lending.core.lending_rule import LendingRule
from lending.core.replay import LendingHistory, follow
from lending.core.rule_over_time import IntArray, targets
from lending.forecasting.errors import ForecasterError
from lending.forecasting.forecaster import FitReport, FloatArray, Forecaster, Progress, mean_squared_error
from lending.forecasting.sampling import WINDOW

EVALUATED_SAMPLES = 1_440
"""Five days, the period on which Lyra reports its error (Lyra section 3.6)."""

PERSISTENCE, PERFECT = "persistence", "perfect"


@dataclass(frozen=True, slots=True)
class ForecastErrors:
    """Mean squared error of each forecaster on the last ``samples`` of a curve, which no forecaster was
    fitted to.

    ``errors`` always holds `PERSISTENCE`, and `PERFECT` if the curve without noise is known. ``fits``: report
    of each forecaster's fit. ``forecasts``: by forecaster, shape (samples,). ``truth``: the samples, shape
    (samples,).
    """

    samples: int
    errors: Mapping[str, float]
    fits: Mapping[str, FitReport]
    truth: FloatArray
    forecasts: Mapping[str, FloatArray] = field(repr=False)

    def ratio_to_persistence(self, name: str) -> float:
        """Return a forecaster's error over the error of persistence: below 1 is better; 1 when persistence
        has none."""
        persistence = self.errors[PERSISTENCE]
        return self.errors[name] / persistence if persistence else 1.0


def forecast_errors(
    samples: ArrayLike,
    forecasters: Iterable[Forecaster],
    *,
    evaluated_samples: int = EVALUATED_SAMPLES,
    expected: ArrayLike | None = None,
    progress: Progress | None = None,
) -> ForecastErrors:
    """Fit each forecaster to all but the last ``evaluated_samples`` and compare its one-period-ahead
    forecasts with these.

    ``samples`` has shape (n,) and no gap; ``expected``, of the same shape, is the curve without noise where
    it is known.

    Raises ForecasterError when samples are missing or too few, TooFewSamples when a model needs more to learn
    from.
    """
    # Copy: the result keeps views of it.
    values = np.array(samples, dtype=np.float64)
    begin = values.size - evaluated_samples
    if evaluated_samples < 1 or begin <= WINDOW or not np.isfinite(values).all():
        raise ForecasterError(
            f"errors on {evaluated_samples} of {values.size} samples cannot be taken: there must be some, "
            "without a gap, and others before them to learn from"
        )
    truth = values[begin:]
    forecasts: dict[str, FloatArray] = {}
    fits: dict[str, FitReport] = {}
    for forecaster in forecasters:
        fits[forecaster.name] = forecaster.fit(values[:begin], progress)
        windows = np.lib.stride_tricks.sliding_window_view(values[:-1], forecaster.window)
        forecasts[forecaster.name] = forecaster.forecast_many(windows[-evaluated_samples:])
    forecasts.setdefault(PERSISTENCE, values[begin - 1 : -1])
    if expected is not None:
        forecasts[PERFECT] = np.array(expected, dtype=np.float64)[begin:]
    errors = {name: mean_squared_error(said, truth) for name, said in forecasts.items()}
    return ForecastErrors(evaluated_samples, errors, fits, truth, forecasts)


@dataclass(frozen=True, slots=True)
class Shortfall:
    """Servers missing in the inference cluster over a history: number of affected periods, and the largest
    number."""

    #: Number of periods with a missing server.
    periods: int
    #: Largest number of missing servers.
    servers_at_worst: int


@dataclass(frozen=True, slots=True)
class ReclaimTiming:
    """Whether servers were reclaimed before they were missing.

    ``reclaims``: operations. ``ahead``: those that began while measured usage alone asked no server back.
    ``ahead_and_needed``: those of them for which the next sample did. ``servers``: servers asked back.
    ``servers_ahead``: those beyond what measured usage alone asked back.

    ``shortfall`` is that of the history itself. The other four follow the plain lending rule over the same
    usage, with and without forecast and headroom.
    """

    reclaims: int
    ahead: int
    ahead_and_needed: int
    servers: int
    servers_ahead: int
    shortfall: Shortfall
    with_forecast_and_headroom: Shortfall
    with_forecast_only: Shortfall
    with_headroom_only: Shortfall
    with_neither: Shortfall

    @property
    def share_ahead(self) -> float | None:
        """Share of reclaims that began before usage rose; None when there was no reclaim."""
        return self.ahead / self.reclaims if self.reclaims else None


def reclaims_ahead(
    rule: LendingRule,
    usage: ArrayLike,
    forecasts: ArrayLike,
    history: LendingHistory | None = None,
    *,
    periods_to_return: int = 0,
) -> ReclaimTiming:
    """Return the effect of forecasts on ``usage``, shape (n,); ``forecasts`` as in `follow`.

    ``history`` holds the actual loans and returns; None: those that ``rule`` would have made.
    ``periods_to_return``: return time of a server where the rule is replayed.

    Raises ValueError for usage outside 0 to 1 and shapes that differ.
    """
    samples = np.asarray(usage, dtype=np.float64)
    without_headroom = LendingRule(rule.servers, 0.0, rule.forecast_margin_fraction)

    def followed(which: LendingRule, expected: ArrayLike | None) -> LendingHistory:
        return follow(which, samples, expected, periods_to_return=periods_to_return)

    both = followed(rule, forecasts)
    history = both if history is None else history
    if history.on_loan.shape != samples.shape:
        raise ValueError(f"a history of {history.on_loan.size} decisions does not fit {samples.size} samples")
    staying = history.on_loan - history.being_returned
    by_usage = targets(rule, samples)
    asked_by_usage = np.maximum(0, staying - by_usage)
    asked_next = np.append(staying[:-1] > by_usage[1:], False)
    reclaims = history.reclaimed > 0
    ahead = reclaims & (asked_by_usage == 0)
    return ReclaimTiming(
        reclaims=int(reclaims.sum()),
        ahead=int(ahead.sum()),
        ahead_and_needed=int((ahead & asked_next).sum()),
        servers=int(history.reclaimed.sum()),
        servers_ahead=int(np.maximum(0, history.reclaimed - asked_by_usage).sum()),
        shortfall=_shortfall(history.shortfall),
        with_forecast_and_headroom=_shortfall(both.shortfall),
        with_forecast_only=_shortfall(followed(without_headroom, forecasts).shortfall),
        with_headroom_only=_shortfall(followed(rule, None).shortfall),
        with_neither=_shortfall(followed(without_headroom, None).shortfall),
    )


def margin_covering(forecasts: FloatArray, truth: FloatArray, share: float) -> float:
    """Return the margin (at least 0) to add to forecasts so that ``share`` of the samples do not exceed them.

    For `LendingRule.forecast_margin_fraction`, from samples that the forecaster was not fitted to. Raises
    ForecasterError for a share outside 0 to 1 or no sample.
    """
    if not 0.0 <= share <= 1.0 or not truth.size:
        raise ForecasterError(f"no margin covers {share:g} of {truth.size} samples")
    return max(0.0, float(np.quantile(truth - forecasts, share)))


def _shortfall(servers: IntArray) -> Shortfall:
    if not servers.size:
        return Shortfall(0, 0)
    return Shortfall(int((servers > 0).sum()), int(servers.max()))
