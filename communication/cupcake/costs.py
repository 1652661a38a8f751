"""The cost of encoding and sending a group by its size, in Cupcake's two forms.

Algorithm 5.1 assumes affine costs α + β · x. Measured encoders take a constant time up to a threshold and
time proportional to the size beyond it.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Protocol

import numpy as np

from communication.profiles.arrays import Floats


class Cost(Protocol):
    """Seconds of groups, each of at least one tensor."""

    def __call__(self, sizes_bytes: Floats) -> Floats:
        """Return the seconds of groups of these sizes before encoding, in the same shape."""


@dataclass(frozen=True, slots=True)
class AffineCost:
    """α + β · x. Raises ValueError for negative or infinite coefficients."""

    fixed_seconds: float
    seconds_per_byte: float

    def __post_init__(self) -> None:
        _not_negative(self.fixed_seconds, self.seconds_per_byte)

    def __call__(self, sizes_bytes: Floats) -> Floats:
        """Return the seconds of groups of these sizes."""
        return self.fixed_seconds + self.seconds_per_byte * np.asarray(sizes_bytes, dtype=np.float64)

    @classmethod
    def fitted(cls, sizes_bytes: Floats, seconds: Floats) -> AffineCost:
        """Return the least-squares fit to measured times; a negative α or β becomes 0 and the other is fitted
        alone.

        Raises ValueError for no measurement, or rows of different lengths.
        """
        x, y = np.asarray(sizes_bytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        if x.ndim != 1 or x.shape != y.shape or not x.size:
            raise ValueError(
                f"there are {x.size} sizes and {y.size} times; a fit needs as many "
                "times as sizes, at least one"
            )
        spread = x - x.mean()
        square = float(spread @ spread)
        slope = float(spread @ (y - y.mean())) / square if square > 0.0 else 0.0
        if slope <= 0.0:
            return cls(max(0.0, float(y.mean())), 0.0)
        fixed = float(y.mean()) - slope * float(x.mean())
        if fixed < 0.0:
            return cls(0.0, max(0.0, float(x @ y) / float(x @ x)))
        return cls(fixed, slope)


@dataclass(frozen=True, slots=True)
class ThresholdCost:
    """``seconds`` up to a size, and proportional to it beyond. Raises ValueError for a threshold that is not
    positive, and for negative or infinite values."""

    seconds: float
    threshold_bytes: float

    def __post_init__(self) -> None:
        _not_negative(self.seconds, self.threshold_bytes)
        if self.threshold_bytes <= 0.0:
            raise ValueError("the size up to which a cost is constant must be positive")

    def __call__(self, sizes_bytes: Floats) -> Floats:
        """Return the seconds of groups of these sizes."""
        share = np.asarray(sizes_bytes, dtype=np.float64) / self.threshold_bytes
        return self.seconds * np.maximum(1.0, share)


def _not_negative(*values: float) -> None:
    for value in values:
        if not (isfinite(value) and value >= 0.0):
            raise ValueError(f"a cost is {value}; it must be finite and not negative")


#: No cost.
FREE = AffineCost(0.0, 0.0)
