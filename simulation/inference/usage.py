"""Usage of an inference cluster over time (Lyra section 3.2.1)."""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import ceil, floor

import numpy as np
from numpy.typing import NDArray

from simulation.workloads.errors import TraceError

FloatArray = NDArray[np.float64]

PERIOD_SECONDS = 300.0
"""Period of the inference scheduler's measurements, forecasts and decisions."""

DAY_SECONDS = 86_400.0


@dataclass(frozen=True, slots=True, eq=False)
class UsageSeries:
    """Mean usage per period: ``usage[i]``, shape (n,), from ``start_seconds + i * period_seconds`` on.

    Usage is the share of the cluster's GPUs that serve requests, 0 to 1. Times are seconds of the simulation,
    whose second 0 is midnight of its first day. A sample becomes known at the end of its period.
    ``expected``: a perfect forecaster's values for a synthetic curve, shape (n,); None if unknown.
    ``source`` says where the series is from, and if it stands in for something else.

    Raises TraceError for an empty series and for a value outside 0 to 1.
    """

    name: str
    source: str
    usage: FloatArray
    start_seconds: float = 0.0
    period_seconds: float = PERIOD_SECONDS
    expected: FloatArray | None = None

    def __post_init__(self) -> None:
        if self.usage.ndim != 1 or not self.usage.size:
            raise TraceError(f"usage {self.name} has no samples")
        if not ((self.usage >= 0.0) & (self.usage <= 1.0)).all():
            raise TraceError(f"usage {self.name} has a value that is no share from 0 to 1")
        if self.expected is not None and self.expected.shape != self.usage.shape:
            raise TraceError(f"usage {self.name} has {self.usage.size} samples, but other expectations")

    @property
    def duration_seconds(self) -> float:
        """Length of the series."""
        return self.usage.size * self.period_seconds

    def times(self) -> FloatArray:
        """Return the beginnings of the samples' periods in seconds, shape (n,)."""
        return self.start_seconds + self.period_seconds * np.arange(self.usage.size, dtype=np.float64)

    def at(self, seconds: float) -> float:
        """Return the usage in the period of this time. After its end the series repeats as in `lasting`."""
        row = floor((seconds - self.start_seconds) / self.period_seconds)
        return float(self.usage[self._rows(np.array([row]))[0]])

    def lasting(self, seconds: float) -> UsageSeries:
        """Return the series cut or repeated to the periods that cover ``seconds``.

        It is repeated by whole days if it has one, which keeps the hours of the day. Raises TraceError
        unless ``seconds`` is above 0.
        """
        if not seconds > 0.0:
            raise TraceError(f"usage {self.name} cannot last {seconds:g} seconds")
        rows = self._rows(np.arange(ceil(seconds / self.period_seconds - 1e-9)))
        expected = None if self.expected is None else self.expected[rows]
        return replace(self, usage=self.usage[rows], expected=expected)

    def _rows(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        days = floor(self.duration_seconds / DAY_SECONDS)
        cycle = round(days * DAY_SECONDS / self.period_seconds) if days else self.usage.size
        inside = (rows >= 0) & (rows < self.usage.size)
        return np.where(inside, rows, rows % cycle)


def averaged(times: FloatArray, values: FloatArray, end: float, period_seconds: float) -> FloatArray:
    """Return means over periods, from the first time on, of a value that holds until the next time.

    ``times`` ascend, shape (k,), with ``values`` of the same shape; the last value holds until ``end``.
    Returns one mean for each whole period before ``end``, possibly none.
    """
    edges = np.append(times, end)
    total = np.concatenate(([0.0], np.cumsum(values * np.diff(edges))))
    periods = floor((end - times[0]) / period_seconds + 1e-9)
    borders = times[0] + period_seconds * np.arange(periods + 1)
    return np.diff(np.interp(borders, edges, total)) / period_seconds
