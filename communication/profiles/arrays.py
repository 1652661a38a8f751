"""Arrays of profiles: of one type, validated, and read-only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeAlias, TypeVar

import numpy as np
from numpy.typing import NDArray

Integers: TypeAlias = NDArray[np.int64]
Floats: TypeAlias = NDArray[np.float64]
Number = TypeVar("Number", bound=np.generic)


def whole_numbers(values: Sequence[int] | Integers, what: str) -> Integers:
    """Return a read-only copy. Raises ValueError, naming ``what``, for fractional or negative values."""
    given = np.asarray(values)
    if given.ndim != 1:
        raise ValueError(f"{what} have {given.ndim} dimensions; they must have one")
    if given.size and not np.issubdtype(given.dtype, np.integer):
        raise ValueError(f"{what} are of type {given.dtype}; they must be whole numbers")
    if given.size and int(given.min()) < 0:
        raise ValueError(f"{what} must not be negative; number {int(given.argmin())} is {given.min()}")
    return _frozen(given.astype(np.int64))


def durations(values: Sequence[float] | Floats, what: str) -> Floats:
    """Return a read-only copy. Raises ValueError, naming ``what``, for infinite or negative values."""
    given = np.asarray(values, dtype=np.float64)
    if given.ndim != 1:
        raise ValueError(f"{what} have {given.ndim} dimensions; they must have one")
    wrong = np.flatnonzero(~(np.isfinite(given) & (given >= 0.0)))
    if wrong.size:
        raise ValueError(f"{what} must be finite and not negative; number {wrong[0]} is {given[wrong[0]]}")
    return _frozen(given.copy())


def _frozen(values: NDArray[Number]) -> NDArray[Number]:
    values.flags.writeable = False
    return values
