"""Persistence: the next period is like the last. The baseline of every other forecaster."""

from __future__ import annotations

from typing import ClassVar, Self

from numpy.typing import ArrayLike

from lending.forecasting.forecaster import (
    FitReport,
    FloatArray,
    Forecaster,
    Progress,
    mean_squared_error,
    training_windows,
)
from lending.forecasting.storage import pack, unpack


class Persistence(Forecaster):
    """Forecasts the last sample."""

    name = "persistence"
    least_samples: ClassVar[int] = Forecaster.window + 1

    @property
    def fitted(self) -> bool:
        """Always true: there is nothing to learn."""
        return True

    def fit(self, samples: ArrayLike, progress: Progress | None = None) -> FitReport:
        """Return the report only. Raises TooFewSamples."""
        windows, following, learned = training_windows(self, samples)
        error = mean_squared_error(windows[learned:, -1], following[learned:])
        return FitReport(learned, 0, error, error)

    def to_bytes(self) -> bytes:
        """Return an archive that holds only the forecaster's name."""
        return pack(self.name, {})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """Return a new instance. Raises ForecasterError when ``data`` is of another kind."""
        unpack(cls.name, data)
        return cls()

    def _predict(self, windows: FloatArray) -> FloatArray:
        return windows[:, -1]
