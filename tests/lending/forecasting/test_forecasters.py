"""Properties of every forecaster: the first day, gaps, and storage."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lending.forecasting.errors import ForecasterError, TooFewSamples
from lending.forecasting.forecaster import Forecaster, Progress, windows_of
from lending.forecasting.lstm import LongShortTermMemory, Training
from lending.forecasting.persistence import Persistence
from lending.forecasting.registry import FORECASTERS, load_forecaster, make_forecaster
from lending.forecasting.ridge import Ridge
from lending.forecasting.rolling import rolling_forecasts
from simulation.inference.daily_curve import DailyCurve, daily_usage

DAYS = daily_usage(DailyCurve(days=4), seed=1).usage
ROW = DAYS[:10]


def quick(name: str) -> Forecaster:
    """Return a forecaster that trains for at most two epochs."""
    return LongShortTermMemory(training=Training(epochs=2)) if name == "lstm" else make_forecaster(name)


@pytest.fixture(params=list(FORECASTERS), name="name")
def _name(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_untrained_forecaster_repeats_the_last_sample(name: str) -> None:
    forecaster = make_forecaster(name)
    assert forecaster.forecast(ROW) == ROW[-1]
    assert forecaster.forecast_many([ROW, ROW[::-1]]).tolist() == [ROW[-1], ROW[0]]


def test_it_refuses_to_learn_from_too_little_and_stays_as_it_was(name: str) -> None:
    forecaster = make_forecaster(name)
    with pytest.raises(TooFewSamples, match="samples without a gap"):
        forecaster.fit(DAYS[:10])
    assert forecaster.forecast(ROW) == ROW[-1]


def test_one_forecast_and_many_agree(name: str) -> None:
    forecaster = quick(name)
    forecaster.fit(DAYS)
    windows, _ = windows_of(DAYS, 10)
    one_by_one = [forecaster.forecast(window) for window in windows[:20]]
    assert forecaster.forecast_many(windows[:20]) == pytest.approx(one_by_one, abs=1e-6)


def test_the_same_samples_give_the_same_forecasts(name: str) -> None:
    first, second = quick(name), quick(name)
    assert first.fit(DAYS) == second.fit(DAYS)
    windows, _ = windows_of(DAYS, 10)
    assert (first.forecast_many(windows) == second.forecast_many(windows)).all()


def test_stored_forecaster_gives_the_same_forecasts(name: str) -> None:
    forecaster = quick(name)
    forecaster.fit(DAYS)
    again = load_forecaster(name, forecaster.to_bytes())
    windows, _ = windows_of(DAYS, 10)
    assert again.fitted
    assert (again.forecast_many(windows) == forecaster.forecast_many(windows)).all()


def test_other_or_damaged_stored_forecasters_are_refused(name: str) -> None:
    other = "ridge" if name == "persistence" else "persistence"
    stored = quick(other)
    stored.fit(DAYS)
    with pytest.raises(ForecasterError, match=f"stored forecaster {other}, not {name}"):
        load_forecaster(name, stored.to_bytes())
    good = quick(name)
    good.fit(DAYS)
    for damaged in (b"", b"no archive", good.to_bytes()[:40]):
        with pytest.raises(ForecasterError, match="no stored forecaster"):
            load_forecaster(name, damaged)


def test_nothing_learned_is_nothing_to_store() -> None:
    for forecaster in (Ridge(), LongShortTermMemory()):
        with pytest.raises(ForecasterError, match="learned nothing"):
            forecaster.to_bytes()


class Stopped(Exception):
    """Raised when the operator stops a training."""


def stop_at(epoch: int) -> Progress:
    """Return a progress callback that raises at an epoch."""

    def progress(done: int, epochs: int) -> None:
        assert 0 <= done < epochs
        if done == epoch:
            raise Stopped

    return progress


@pytest.mark.parametrize(("learner", "epoch"), [("ridge", 0), ("lstm", 1)])
def test_a_training_that_is_stopped_leaves_what_was_learned_before(learner: str, epoch: int) -> None:
    forecaster = quick(learner)
    forecaster.fit(DAYS[:900])
    before = forecaster.forecast(ROW)
    with pytest.raises(Stopped):
        forecaster.fit(DAYS, stop_at(epoch))
    assert forecaster.forecast(ROW) == before


def test_a_gap_is_bridged_by_the_sample_before_it() -> None:
    forecaster = Persistence()
    assert forecaster.forecast([*ROW[:9], np.nan]) == ROW[8]
    ridge = Ridge()
    ridge.fit(DAYS)
    holed, bridged = ROW.copy(), ROW.copy()
    holed[[0, 4]], bridged[[0, 4]] = np.nan, ROW[[1, 3]]
    assert ridge.forecast(holed) == pytest.approx(ridge.forecast(bridged), abs=1e-12)


def test_gaps_are_not_learned_from() -> None:
    holed = np.insert(DAYS, 200, np.nan)
    windows, following = windows_of(holed, 10)
    assert np.isfinite(windows).all()
    assert following.size == DAYS.size - 10 - 10
    assert Ridge().fit(holed).windows < Ridge().fit(DAYS).windows


def test_without_any_sample_there_is_no_forecast() -> None:
    with pytest.raises(ForecasterError, match="no sample"):
        Ridge().forecast([np.nan] * 10)
    with pytest.raises(ForecasterError, match="no sample"):
        Ridge().forecast([])
    forecasts = Ridge().forecast_many(np.array([[np.nan] * 10, ROW.tolist()]))
    assert np.isnan(forecasts[0])
    assert forecasts[1] == ROW[-1]


def test_windows_of_another_length_are_refused() -> None:
    with pytest.raises(ForecasterError, match="windows of 10 samples"):
        Ridge().forecast_many([[0.5] * 9])


def test_an_unknown_name_is_answered_with_those_there_are() -> None:
    with pytest.raises(ForecasterError, match="known are persistence, ridge, lstm"):
        make_forecaster("oracle")


def test_ridge_learns_a_straight_line_exactly() -> None:
    samples = np.linspace(0.2, 0.8, 400)
    ridge = Ridge()
    report = ridge.fit(samples)
    assert report.error < report.persistence_error
    assert ridge.forecast(samples[100:110]) == pytest.approx(samples[110], abs=1e-3)


@pytest.fixture(scope="module", name="learned")
def _learned() -> list[Forecaster]:
    forecasters = [quick("ridge"), quick("lstm")]
    for forecaster in forecasters:
        forecaster.fit(DAYS)
    return forecasters


@given(st.lists(st.floats(0.0, 1.0), min_size=10, max_size=10))
def test_a_forecast_is_a_share_of_gpus(learned: list[Forecaster], window: list[float]) -> None:
    for forecaster in learned:
        assert 0.0 <= forecaster.forecast(window) <= 1.0


def test_forecasting_without_the_network_does_not_import_pytorch() -> None:
    """This keeps the orchestrator's processes small."""
    code = (
        "import sys; from lending.forecasting.registry import make_forecaster; make_forecaster('ridge'); "
        "import lending.forecasting.evaluation, lending.forecasting.rolling; sys.exit('torch' in sys.modules)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


def test_rolling_forecasts_use_only_past_samples() -> None:
    usage = daily_usage(DailyCurve(days=4), seed=2).usage
    whole = rolling_forecasts(usage, Ridge())
    changed = usage.copy()
    changed[700:] = 0.5
    assert (rolling_forecasts(changed, Ridge())[:700] == whole[:700]).all()
    assert (whole[:288] == usage[:288]).all(), "the first day is persistence"
    assert (whole[288:] != usage[288:]).any()


def test_rolling_forecasts_bridge_what_was_not_reported() -> None:
    usage = daily_usage(DailyCurve(days=2), seed=2).usage
    usage[[0, 100]] = np.nan
    forecasts = rolling_forecasts(usage, Persistence())
    assert np.isnan(forecasts[0])
    assert forecasts[100] == usage[99]
    with pytest.raises(ValueError, match="every 0 samples"):
        rolling_forecasts(usage, Persistence(), retrain_every=0)
