"""Tasks of a model that learns several at once."""

from __future__ import annotations

import math
from dataclasses import dataclass


@dataclass(frozen=True)
class Task:
    """One task, as `TrainingFunction.tasks` declares it.

    Attributes:
        share: samples of a batch, relative to those of other tasks.
        cost: time of a sample, relative to samples of other tasks.

    Raises:
        ValueError: a value is not a number above 0.
    """

    share: float
    cost: float = 1.0

    def __post_init__(self) -> None:
        for name in ("share", "cost"):
            value = getattr(self, name)
            if not (math.isfinite(value) and value > 0):
                raise ValueError(f"{name} is {value}; it must be a number above 0")
