"""What encoding and sending a group takes as a function of its size, in the two forms that Cupcake knows.

Affine costs α + β · x are what Algorithm 5.1 is made for; measured encoders take one time up to a threshold
and time in proportion to the size beyond it (Cupcake 1, 2.2).
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import Protocol

import numpy as np

from communication.profiles.arrays import Floats


class Cost(Protocol):
    """Seconds for groups, each of at least one tensor."""

    def __call__(self, sizes_bytes: Floats) -> Floats:
        """Of groups of so many bytes before encoding; an array of the same shape."""


@dataclass(frozen=True, slots=True)
class AffineCost:
    """α + β · x. Raises ValueError for negative or endless ones."""

    fixed_seconds: float
    seconds_per_byte: float

    def __post_init__(self) -> None:
        _not_negative(self.fixed_seconds, self.seconds_per_byte)

    def __call__(self, sizes_bytes: Floats) -> Floats:
        """Of groups of so many bytes."""
        return self.fixed_seconds + self.seconds_per_byte * np.asarray(sizes_bytes, dtype=np.float64)

    @classmethod
    def fitted(cls, sizes_bytes: Floats, seconds: Floats) -> AffineCost:
        """The least squares through measured times; where α or β would be negative it is 0 and the other one
        is fitted alone.

        Raises ValueError for less than one measurement, or rows of different lengths.
        """
        x, y = np.asarray(sizes_bytes, dtype=np.float64), np.asarray(seconds, dtype=np.float64)
        if x.ndim != 1 or x.shape != y.shape or not x.size:
            raise ValueError(f"{x.size} sizes and {y.size} times are nothing to fit")
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
    """``seconds`` up to a size, and in proportion to it beyond. Raises ValueError for a threshold that is not
    positive, negative or endless values."""

    seconds: float
    threshold_bytes: float

    def __post_init__(self) -> None:
        _not_negative(self.seconds, self.threshold_bytes)
        if self.threshold_bytes <= 0.0:
            raise ValueError("the size up to which a cost is constant is positive")

    def __call__(self, sizes_bytes: Floats) -> Floats:
        """Of groups of so many bytes."""
        share = np.asarray(sizes_bytes, dtype=np.float64) / self.threshold_bytes
        return self.seconds * np.maximum(1.0, share)


def _not_negative(*values: float) -> None:
    for value in values:
        if not (isfinite(value) and value >= 0.0):
            raise ValueError(f"costs are finite and not negative, not {value}")


#: What takes no time.
FREE = AffineCost(0.0, 0.0)
