"""The next period is as the last: what every other forecaster is measured against."""

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
    """The last sample."""

    name = "persistence"
    least_samples: ClassVar[int] = Forecaster.window + 1

    @property
    def fitted(self) -> bool:
        """Always: there is nothing to learn."""
        return True

    def fit(self, samples: ArrayLike, progress: Progress | None = None) -> FitReport:
        """Only the report. Raises TooFewSamples."""
        windows, following, learned = training_windows(self, samples)
        error = mean_squared_error(windows[learned:, -1], following[learned:])
        return FitReport(learned, 0, error, error)

    def to_bytes(self) -> bytes:
        """A mark of its kind."""
        return pack(self.name, {})

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """A new one. Raises ForecasterError when ``data`` is of another kind."""
        unpack(cls.name, data)
        return cls()

    def _predict(self, windows: FloatArray) -> FloatArray:
        return windows[:, -1]
