"""Ridge regression on the last ten samples: linear, fitted in a millisecond."""

from __future__ import annotations

from typing import Self

import numpy as np
from numpy.typing import ArrayLike

from lending.forecasting.errors import ForecasterError
from lending.forecasting.forecaster import (
    FitReport,
    FloatArray,
    Forecaster,
    Progress,
    mean_squared_error,
    training_windows,
)
from lending.forecasting.storage import pack, unpack

PENALTY = 1e-3
"""Weight of the squared coefficients relative to the sum of squared errors; keeps a curve without noise
solvable."""


class Ridge(Forecaster):
    """Predicts the mean of the training targets plus a weighted sum of the window's deviations from its
    mean."""

    name = "ridge"

    def __init__(self) -> None:
        self._coefficients: FloatArray | None = None
        self._centre: FloatArray = np.zeros(self.window)
        self._level = 0.0

    @property
    def fitted(self) -> bool:
        """Whether there are coefficients."""
        return self._coefficients is not None

    def fit(self, samples: ArrayLike, progress: Progress | None = None) -> FitReport:
        """Fit the coefficients to the windows that are not set aside. Raises TooFewSamples."""
        windows, following, learned = training_windows(self, samples)
        if progress is not None:
            progress(0, 1)
        centre, level = windows[:learned].mean(axis=0), float(following[:learned].mean())
        departures = windows[:learned] - centre
        products = departures.T @ departures + PENALTY * np.eye(self.window)
        coefficients = np.linalg.solve(products, departures.T @ (following[:learned] - level))
        self._coefficients, self._centre, self._level = coefficients, centre, level
        return FitReport(
            windows=learned,
            epochs=1,
            error=mean_squared_error(self._predict(windows[learned:]), following[learned:]),
            persistence_error=mean_squared_error(windows[learned:, -1], following[learned:]),
        )

    def to_bytes(self) -> bytes:
        """Return the coefficients. Raises ForecasterError when there are none."""
        if self._coefficients is None:
            raise ForecasterError(f"{self.name} has learned nothing that could be stored")
        return pack(
            self.name,
            {"coefficients": self._coefficients, "centre": self._centre, "level": np.array(self._level)},
        )

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return the stored model. Raises ForecasterError when ``data`` holds no coefficients for this
        window."""
        arrays = unpack(cls.name, data)
        shapes = {key: array.shape for key, array in arrays.items()}
        if shapes != {"coefficients": (cls.window,), "centre": (cls.window,), "level": ()}:
            raise ForecasterError(f"these are no coefficients of {cls.name}: {sorted(shapes)}")
        ridge = cls()
        ridge._coefficients, ridge._centre = arrays["coefficients"], arrays["centre"]
        ridge._level = float(arrays["level"])
        return ridge

    def _predict(self, windows: FloatArray) -> FloatArray:
        assert self._coefficients is not None  # called only when fitted
        forecasts: FloatArray = self._level + (windows - self._centre) @ self._coefficients
        return forecasts
