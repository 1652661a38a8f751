"""The worked example that several vectors share: three workers, fifteen elements (Z1, Z3, Z4)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

ELEMENTS = 15
WORKERS = (
    {2: 1.0, 5: 2.0, 8: -1.0, 9: 4.0},
    {5: 3.0, 7: 1.5, 8: 1.0, 15: 2.0},
    {2: 0.5, 7: -1.5, 9: 1.0, 14: 6.0},
)
INDICES = [np.array(sorted(one)) for one in WORKERS]


def gradients() -> list[NDArray[np.float32]]:
    """Return the workers' gradients."""
    found = []
    for worker in WORKERS:
        gradient = np.zeros(ELEMENTS, np.float32)
        for index, value in worker.items():
            gradient[index - 1] = value
        found.append(gradient)
    return found


@dataclass(frozen=True)
class HandHashes:
    """The hash functions of Z3. ``other``: with the second h2."""

    other: bool = False
    rehashes: int = 2

    def partition(self, indices: NDArray[np.int64], parts: int) -> NDArray[np.int64]:
        return (indices + 10) % 17 % parts

    def slot(self, level: int, indices: NDArray[np.int64], slots: int) -> NDArray[np.int64]:
        if level == 1:
            return indices % slots
        return indices // 2 % slots if self.other else (3 * indices + 1) % slots
