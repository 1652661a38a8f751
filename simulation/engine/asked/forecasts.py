"""What a forecaster would have said all along an inference cluster's usage."""

from __future__ import annotations

import numpy as np

from lending.forecasting.registry import NO_FORECASTER, make_forecaster
from lending.forecasting.rolling import rolling_forecasts
from scheduling.core.question.snapshot import FloatArray
from simulation.engine.asked.lending import Lending


def forecasts_of(lending: Lending) -> FloatArray:
    """Entry t: what is expected, after sample t, of sample t + 1; NaN where nothing is expected."""
    usage = lending.usage.usage
    if lending.forecaster == NO_FORECASTER:
        return np.full(usage.size, np.nan)
    return rolling_forecasts(usage, make_forecaster(lending.forecaster))
