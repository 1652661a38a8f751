"""The algorithms' view of a question: a timeline engine, and arrays about tensors and columns."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from communication.espresso.timeline import TimelineEngine
from communication.profiles.arrays import Integers


@dataclass(frozen=True, eq=False)
class Choices:
    """Tensors and the columns among which they choose.

    Attributes:
        sizes: of each tensor, in bytes or elements. size_of: the row of its size.
        compressions: how often each column compresses.
        on_cpu: for each column that compresses on GPUs only, the same option's column on the CPU; else -1.
    """

    engine: TimelineEngine
    sizes: Integers
    size_of: Integers
    compressions: Integers
    on_cpu: Integers

    @property
    def order(self) -> Integers:
        """Tensors in order of decision: larger ones first, of equal ones those that are ready later."""
        return np.lexsort((-np.arange(len(self.sizes)), -self.sizes)).astype(np.int64)
