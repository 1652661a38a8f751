"""Synthetic sparse gradients with the overlap, densification and skew of embedding tables, from a seed.

Rows of a table are drawn by a Zipf law without replacement, the popular ones first in the table, as in a
vocabulary sorted by frequency; all columns of a drawn row are non-zero.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

import numpy as np
from numpy.typing import NDArray

from communication.zen.densification import Densification, fitted_densification
from communication.zen.indices import Indices, Values, checked_elements


@dataclass(frozen=True)
class SyntheticTable:
    """An embedding table whose rows are sorted by popularity.

    Attributes:
        rows, columns: of the table.
        touched: rows that one worker's batch touches.
        exponent: of the Zipf law; 0 is uniform, 1 is as skewed as words.
        shift: of ranks (Zipf-Mandelbrot); a higher one makes the first rows less dominant, so that workers
            overlap less.
    """

    rows: int
    columns: int
    touched: int
    exponent: float = 1.0
    shift: float = 0.0

    def __post_init__(self) -> None:
        if self.rows < 1 or self.columns < 1 or not 0 <= self.touched <= self.rows:
            raise ValueError(f"{self.touched} of {self.rows} rows of {self.columns} columns are no batch")
        if not (isfinite(self.exponent) and self.exponent >= 0.0 and isfinite(self.shift)):
            raise ValueError(f"an exponent of {self.exponent} and a shift of {self.shift}")
        if self.shift < 0.0:
            raise ValueError(f"a shift of {self.shift}")
        checked_elements(self.elements)

    @property
    def elements(self) -> int:
        """|G|."""
        return self.rows * self.columns

    @property
    def density(self) -> float:
        """d."""
        return self.touched / self.rows

    def touched_rows(self, worker: int, iteration: int = 0, seed: int = 0) -> Indices:
        """Return the rows of one worker in one iteration, counted from 1."""
        generator = np.random.default_rng((seed, iteration, worker))
        # The rows with the smallest weighted exponential keys are a weighted sample without replacement.
        keys = generator.exponential(size=self.rows) * np.power(self._ranks(), self.exponent)
        chosen = np.argpartition(keys, self.touched - 1)[: self.touched] if self.touched else np.empty(0, int)
        return np.sort(chosen).astype(np.int64) + 1

    def indices(self, worker: int, iteration: int = 0, seed: int = 0) -> Indices:
        """Return the elements of `touched_rows`."""
        return elements_of_rows(self.touched_rows(worker, iteration, seed), self.columns)

    def gradient(self, worker: int, iteration: int = 0, seed: int = 0, *, whole: bool = False) -> Values:
        """Return a flat FP32 gradient with these non-zeros. ``whole``: with integers, whose sums are
        exact."""
        generator = np.random.default_rng((seed, iteration, worker, 1))
        indices = self.indices(worker, iteration, seed)
        if whole:
            values = generator.integers(1, 9, len(indices)) * generator.choice((-1, 1), len(indices))
        else:
            values = generator.standard_normal(len(indices))
        gradient: NDArray[np.float32] = np.zeros(self.elements, np.float32)
        gradient[indices - 1] = values
        return gradient

    def measured_densification(self, workers: tuple[int, ...], seed: int = 0) -> Densification:
        """Return the law fitted to the sums of these numbers of simulated workers, as profiling would."""
        found: dict[int, float] = {}
        seen = np.zeros(self.rows, bool)
        for worker in range(max(workers, default=1)):
            seen[self.touched_rows(worker, seed=seed) - 1] = True
            if worker + 1 in workers or worker == 0:
                found[worker + 1] = float(seen.mean())
        return fitted_densification(found)

    def _ranks(self) -> NDArray[np.float64]:
        return np.arange(1, self.rows + 1, dtype=np.float64) + self.shift


def elements_of_rows(rows: Indices, columns: int) -> Indices:
    """Return the indices of all elements of these rows."""
    return (((rows - 1) * columns)[:, None] + np.arange(1, columns + 1)).reshape(-1)
