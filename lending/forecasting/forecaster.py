"""The interface of all forecasters (Lyra section 3.6).

Samples are mean usage per period of five minutes, oldest first, as shares from 0 to 1. A forecaster reads the
last `Forecaster.window` samples and returns the mean usage of the next period. A sample that was never
reported is NaN: training skips it, and a forecast uses the sample before it instead.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray

from lending.forecasting.errors import ForecasterError, TooFewSamples
from lending.forecasting.sampling import SAMPLES_PER_DAY, WINDOW

FloatArray = NDArray[np.float64]

Progress = Callable[[int, int], None]
"""Called before each epoch with the epochs done and the maximum number of epochs. It may raise: the fit then
ends with that error and the forecaster stays as it was."""


@dataclass(frozen=True, slots=True)
class FitReport:
    """Result of a fit.

    The forecaster learned from ``windows`` windows in ``epochs`` passes. ``error`` is the mean squared error
    on the windows set aside (the last tenth, or the last day), ``persistence_error`` that of persistence on
    the same windows.
    """

    windows: int
    epochs: int
    error: float
    persistence_error: float


class Forecaster(ABC):
    """One model. Until it is fitted, its forecast is the last sample."""

    name: ClassVar[str]
    window: ClassVar[int] = WINDOW
    least_samples: ClassVar[int] = SAMPLES_PER_DAY

    @property
    @abstractmethod
    def fitted(self) -> bool:
        """Whether a model has been learned."""

    @abstractmethod
    def fit(self, samples: ArrayLike, progress: Progress | None = None) -> FitReport:
        """Fit to samples, shape (n,), discarding the previous model. The same samples give the same model.

        Raises TooFewSamples, and whatever ``progress`` raises.
        """

    @abstractmethod
    def to_bytes(self) -> bytes:
        """Return the model for `from_bytes`."""

    @classmethod
    @abstractmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return a stored forecaster. Raises ForecasterError when ``data`` is not of this kind."""

    @abstractmethod
    def _predict(self, windows: FloatArray) -> FloatArray:
        """Return the next samples after finite windows, shape (n, window) to (n,). Called only when
        fitted."""

    def forecast(self, window: ArrayLike) -> float:
        """Return the mean usage of the next period from the last `window` samples of ``window``.

        Given fewer than `window` samples, returns the last one. Raises ForecasterError when there is none.
        """
        samples = np.asarray(window, dtype=np.float64).reshape(-1)[-self.window :]
        known = samples[np.isfinite(samples)]
        if not known.size:
            raise ForecasterError("there is no sample to forecast from")
        if samples.size < self.window:
            return float(np.clip(known[-1], 0.0, 1.0))
        return float(self.forecast_many(samples.reshape(1, -1))[0])

    def forecast_many(self, windows: ArrayLike) -> FloatArray:
        """Return `forecast` for many windows, shape (n, window) to (n,); NaN where a window has no sample.

        Raises ForecasterError for another shape.
        """
        samples = np.asarray(windows, dtype=np.float64)
        if samples.ndim != 2 or samples.shape[1] != self.window:
            raise ForecasterError(f"windows of {self.window} samples are needed, not shape {samples.shape}")
        bridged = _bridged(samples)
        forecasts = bridged[:, -1].copy()
        known = np.isfinite(forecasts)
        if self.fitted and known.any():
            forecasts[known] = self._predict(np.ascontiguousarray(bridged[known]))
        return np.clip(forecasts, 0.0, 1.0)


def windows_of(samples: ArrayLike, window: int) -> tuple[FloatArray, FloatArray]:
    """Return all windows without a gap and the sample after each: shapes (n, window) and (n,), oldest
    first."""
    values = np.asarray(samples, dtype=np.float64)
    if values.size <= window:
        return np.zeros((0, window)), np.zeros(0)
    rows = np.lib.stride_tricks.sliding_window_view(values, window + 1)
    rows = rows[np.isfinite(rows).all(axis=1)]
    return np.ascontiguousarray(rows[:, :window]), rows[:, window].copy()


def training_windows(forecaster: Forecaster, samples: ArrayLike) -> tuple[FloatArray, FloatArray, int]:
    """Return `windows_of` the samples and the number of windows to learn from; the rest is for validation.

    The validation set is the last tenth, but at least a whole day where two more days remain: validated on an
    evening alone, a model that has learned only evenings looks best.

    Raises TooFewSamples when there are fewer gap-free windows than `Forecaster.least_samples` samples give.
    """
    windows, following = windows_of(samples, forecaster.window)
    least = forecaster.least_samples - forecaster.window
    if following.size < least:
        raise TooFewSamples(
            f"{forecaster.name} needs {forecaster.least_samples} samples without a gap; there are windows "
            f"for {following.size} forecasts"
        )
    aside = max(1, following.size // 10)
    if following.size >= 3 * SAMPLES_PER_DAY - forecaster.window:
        aside = max(aside, SAMPLES_PER_DAY)
    return windows, following, following.size - aside


def mean_squared_error(forecasts: FloatArray, truth: FloatArray) -> float:
    """Return the mean of squared differences."""
    return float(np.mean((forecasts - truth) ** 2))


def _bridged(samples: FloatArray) -> FloatArray:
    """Fill gaps of each row with the sample before, or with the first known one; rows of gaps stay as they
    are."""
    known = np.isfinite(samples)
    if known.all():
        return samples
    columns = np.arange(samples.shape[1])
    before = np.maximum.accumulate(np.where(known, columns, -1), axis=1)
    first = np.where(known.any(axis=1), known.argmax(axis=1), 0)
    source = np.where(before >= 0, before, first[:, None])
    return np.take_along_axis(samples, source, axis=1)
