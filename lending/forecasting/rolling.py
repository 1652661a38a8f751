"""Rolling forecasts over a whole curve: from the past alone, with a new fit every day."""

from __future__ import annotations

from contextlib import suppress

import numpy as np
from numpy.typing import ArrayLike

from lending.forecasting.errors import TooFewSamples
from lending.forecasting.forecaster import FloatArray, Forecaster, Progress
from lending.forecasting.sampling import LONGEST_HISTORY, SAMPLES_PER_DAY


def rolling_forecasts(
    samples: ArrayLike,
    forecaster: Forecaster,
    *,
    retrain_every: int = SAMPLES_PER_DAY,
    longest_history: int = LONGEST_HISTORY,
    progress: Progress | None = None,
) -> FloatArray:
    """Return the forecast of the next sample at each instant, shape (n,): entry t uses samples 0 to t.

    The forecaster is refitted after every ``retrain_every`` samples to the last ``longest_history`` of them.
    Until there are enough, the last sample is the forecast. Entries before the first sample are NaN.

    Raises ValueError when ``retrain_every`` is below 1, and whatever ``progress`` raises.
    """
    if retrain_every < 1:
        raise ValueError(f"a forecaster cannot be fitted every {retrain_every} samples")
    values = np.asarray(samples, dtype=np.float64)
    forecasts = np.full(values.size, np.nan)
    # Windows that begin before the first sample start with gaps, which `forecast_many` fills.
    padded = np.concatenate((np.full(forecaster.window - 1, np.nan), values))
    windows = np.lib.stride_tricks.sliding_window_view(padded, forecaster.window)
    for first in range(0, values.size, retrain_every):
        if first:
            # Until there are enough samples, the last one is the forecast.
            with suppress(TooFewSamples):
                forecaster.fit(values[max(0, first - longest_history) : first], progress)
        block = windows[first : first + retrain_every]
        forecasts[first : first + len(block)] = forecaster.forecast_many(block)
    return forecasts
