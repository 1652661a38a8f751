"""Indices of non-zeros, and their order in a gradient."""

from __future__ import annotations

from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

Indices: TypeAlias = NDArray[np.int64]
"""Places of non-zeros in a flat tensor, counted from 1 (so that 0 can mean empty), ascending, each once."""

Values: TypeAlias = NDArray[np.floating[Any]]
"""The gradient at some indices, in their order."""

MOST_ELEMENTS = 2**31 - 1
"""Indices are sent as int32."""


def nonzero_indices(gradient: Values) -> Indices:
    """Return the indices of a flat gradient's non-zeros. NaN and infinity count, negative zero does not."""
    return np.flatnonzero(gradient) + 1


def checked_elements(elements: int) -> int:
    """Return a number of elements that fits indices. Raises ValueError for others."""
    if not 0 <= elements <= MOST_ELEMENTS:
        raise ValueError(f"the tensor has {elements} elements; there must be 0 to {MOST_ELEMENTS}")
    return elements
