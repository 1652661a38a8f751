"""A forecaster's predictions for every sample of an inference cluster's usage."""

from __future__ import annotations

import numpy as np

from lending.forecasting.registry import NO_FORECASTER, make_forecaster
from lending.forecasting.rolling import rolling_forecasts
from scheduling.core.question.snapshot import FloatArray
from simulation.engine.asked.lending import Lending


def forecasts_of(lending: Lending) -> FloatArray:
    """Return at entry t the forecast, made after sample t, of sample t + 1; NaN where there is none."""
    usage = lending.usage.usage
    if lending.forecaster == NO_FORECASTER:
        return np.full(usage.size, np.nan)
    return rolling_forecasts(usage, make_forecaster(lending.forecaster))
