"""Errors on the last days of a curve, and whether reclaims began before usage rose."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lending.core.lending_rule import LendingRule
from lending.core.replay import LendingHistory, follow
from lending.forecasting.errors import ForecasterError, TooFewSamples
from lending.forecasting.evaluation import (
    PERFECT,
    PERSISTENCE,
    forecast_errors,
    margin_covering,
    reclaims_ahead,
)
from lending.forecasting.persistence import Persistence
from lending.forecasting.ridge import Ridge
from simulation.inference.daily_curve import DailyCurve, daily_usage

SERIES = daily_usage(DailyCurve(days=15), seed=0)


def test_the_synthetic_curve_is_as_hard_to_forecast_as_calibrated() -> None:
    """Persistence 0.00087, ridge 0.00061, a perfect forecaster of the curve 0.00042."""
    found = forecast_errors(SERIES.usage, [Persistence(), Ridge()], expected=SERIES.expected)
    assert found.errors[PERSISTENCE] == pytest.approx(0.00087, rel=0.1)
    assert found.errors["ridge"] == pytest.approx(0.00061, rel=0.1)
    assert found.errors[PERFECT] == pytest.approx(0.00042, rel=0.1)
    assert found.ratio_to_persistence(PERSISTENCE) == 1.0
    assert found.ratio_to_persistence("ridge") == found.errors["ridge"] / found.errors[PERSISTENCE]


def test_evaluated_samples_are_not_in_the_training_data() -> None:
    usage = SERIES.usage.copy()
    found = forecast_errors(usage, [Ridge()], evaluated_samples=300)
    usage[-1] = 0.4
    changed = forecast_errors(usage, [Ridge()], evaluated_samples=300)
    assert (changed.forecasts["ridge"] == found.forecasts["ridge"]).all()
    assert found.truth.tolist() == SERIES.usage[-300:].tolist()
    assert found.forecasts[PERSISTENCE].tolist() == SERIES.usage[-301:-1].tolist()


def test_errors_need_samples() -> None:
    with pytest.raises(ForecasterError, match="cannot be taken"):
        forecast_errors(SERIES.usage[:1445], [Persistence()])
    with pytest.raises(ForecasterError, match="without a gap"):
        forecast_errors(np.append(SERIES.usage, np.nan), [Persistence()])
    with pytest.raises(TooFewSamples):
        forecast_errors(SERIES.usage[:1600], [Ridge()])


TEN = LendingRule(servers=10, headroom_fraction=0.1)


def test_reclaim_is_ahead_when_usage_alone_does_not_require_it() -> None:
    usage = [0.2, 0.2, 0.6, 0.6]
    seen = reclaims_ahead(TEN, usage, [0.2, 0.6, 0.6, 0.6])
    # 7 are lent at the first instant; 4 come back at the second because more is expected, and it comes.
    assert (seen.reclaims, seen.ahead, seen.ahead_and_needed) == (1, 1, 1)
    assert (seen.servers, seen.servers_ahead, seen.share_ahead) == (4, 4, 1.0)
    assert seen.shortfall.periods == seen.with_forecast_and_headroom.periods == 0
    # Without a forecast 3 are at home when 6 are needed.
    assert seen.with_headroom_only.servers_at_worst == 3
    assert seen.with_neither.servers_at_worst == 4
    assert seen.with_headroom_only.periods == 1


def test_a_reclaim_that_follows_usage_is_not_ahead() -> None:
    seen = reclaims_ahead(TEN, [0.2, 0.6, 0.6], [np.nan] * 3)
    assert (seen.reclaims, seen.ahead, seen.servers_ahead, seen.share_ahead) == (1, 0, 0, 0.0)
    assert seen.with_forecast_and_headroom == seen.with_headroom_only


def test_a_reclaim_in_vain_is_ahead_but_was_not_needed() -> None:
    seen = reclaims_ahead(TEN, [0.2, 0.2, 0.2], [0.2, 0.6, 0.2])
    assert (seen.reclaims, seen.ahead, seen.ahead_and_needed) == (1, 1, 0)


def test_reclaims_for_usage_and_for_forecasts_are_counted_apart() -> None:
    seen = reclaims_ahead(TEN, [0.2, 0.4, 0.6], [0.2, 0.6, 0.6])
    assert (seen.reclaims, seen.ahead, seen.servers, seen.servers_ahead) == (1, 0, 4, 2)


def test_without_a_reclaim_there_is_no_share() -> None:
    assert reclaims_ahead(TEN, [0.5], [0.5]).share_ahead is None
    assert reclaims_ahead(TEN, [], []).shortfall.periods == 0


def test_the_history_of_a_run_is_taken_as_it_was() -> None:
    usage, forecasts = [0.2, 0.2, 0.6, 0.6], [0.2, 0.6, 0.6, 0.6]
    late = follow(TEN, usage, forecasts, periods_to_return=2)
    seen = reclaims_ahead(TEN, usage, forecasts, late)
    assert (seen.reclaims, seen.ahead) == (1, 1)
    assert seen.shortfall.servers_at_worst == 3
    assert seen.with_forecast_and_headroom.servers_at_worst == 0
    assert reclaims_ahead(TEN, usage, forecasts, periods_to_return=2).shortfall == seen.shortfall
    nothing = np.zeros(3, dtype=np.int64)
    with pytest.raises(ValueError, match="3 decisions does not fit 4 samples"):
        reclaims_ahead(TEN, usage, forecasts, LendingHistory(*[nothing] * 5))


def test_on_the_daily_curve_forecast_and_headroom_each_help() -> None:
    rule = LendingRule(servers=520)
    assert SERIES.expected is not None
    perfect = np.append(SERIES.expected[1:], np.nan)
    seen = reclaims_ahead(rule, SERIES.usage, perfect)
    assert seen.share_ahead is not None
    assert seen.share_ahead > 0.0
    periods = [
        seen.with_forecast_and_headroom.periods,
        seen.with_headroom_only.periods,
        seen.with_neither.periods,
    ]
    assert periods == sorted(periods)
    assert periods[0] < periods[1] < periods[2]
    assert (
        seen.with_forecast_and_headroom.periods < seen.with_forecast_only.periods < seen.with_neither.periods
    )


def test_margin_from_past_errors_holds_its_share_of_short_periods() -> None:
    found = forecast_errors(SERIES.usage, [Ridge()])
    said, truth = found.forecasts["ridge"], found.truth
    margin = margin_covering(said[:720], truth[:720], 0.99)
    short = float((truth[720:] > said[720:] + margin).mean())
    assert 0.0 < margin < 0.1
    assert short < 0.03
    assert margin_covering(said, said - 0.1, 0.5) == 0.0
    with pytest.raises(ForecasterError, match="no margin"):
        margin_covering(said, truth, 1.5)


@given(st.lists(st.floats(0.0, 1.0), min_size=2, max_size=40))
def test_perfect_forecast_is_never_short(usage: list[float]) -> None:
    seen = reclaims_ahead(LendingRule(50), usage, [*usage[1:], np.nan])
    assert seen.with_forecast_and_headroom.periods == seen.with_forecast_only.periods == 0
    assert seen.ahead_and_needed <= seen.ahead <= seen.reclaims
    assert seen.servers_ahead <= seen.servers
