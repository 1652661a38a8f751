"""The sparsity profile of a tensor from the units that workers touched in a few iterations."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from statistics import fmean

from communication.zen.densification import Densification, Skew, fitted_densification
from communication.zen.indices import Indices
from communication.zen.profile import PUBLISHED_SKEW, SparsityProfile
from communication.zen.sparsity import density, skewness, union

#: Numbers of workers whose sums are measured, up to the number of workers.
SUBSETS = (2, 4, 8)
PARTS = (2, 4, 8, 16, 32, 64, 128)


def measured_profile(
    tensor: str, elements: int, width: int, iterations: Sequence[Sequence[Indices]]
) -> SparsityProfile:
    """Return the profile of these iterations.

    Args:
        elements, width: of the tensor, and the values that share one index.
        iterations: for each, the units that every worker touched, counted from 1; equally many workers.

    Raises ValueError for no iteration, different numbers of workers, or an invalid index.
    """
    workers = len(iterations[0]) if iterations else 0
    if workers < 1:
        raise ValueError(f"{tensor}: nothing was measured")
    if any(len(each) != workers for each in iterations):
        raise ValueError(f"{tensor}: an iteration was measured on more workers than another")
    units = elements // width
    for touched in (one for each in iterations for one in each):
        if len(touched) and not 1 <= int(touched.min()) <= int(touched.max()) <= units:
            raise ValueError(f"{tensor}: indices must be from 1 to {units}")
    law = _law(iterations, units, workers)
    return SparsityProfile(tensor, elements, width, law, _skew(iterations, units))


def _law(iterations: Sequence[Sequence[Indices]], units: int, workers: int) -> Densification:
    measured = {1: fmean(density(one, units) for each in iterations for one in each)}
    for count in SUBSETS:
        if count <= workers:
            # All workers take part, in consecutive groups.
            groups = range(0, workers - count + 1, count)
            found = [
                density(union(each[first : first + count]), units) for each in iterations for first in groups
            ]
            # A mean over fewer workers may slightly violate the bounds.
            before = max(measured)
            least, most = measured[before], min(1.0, count * measured[1])
            measured[count] = min(most, max(least, fmean(found)))
    return fitted_densification(measured)


def _skew(iterations: Sequence[Sequence[Indices]], units: int) -> Skew:
    """Return the power of the number of parts that fits all measured ratios; the published one if there is
    nothing to fit."""
    parts = [count for count in PARTS if count <= units]
    touched = [one for each in iterations for one in each if len(one)]
    if not parts or not touched:
        return PUBLISHED_SKEW
    ratios = {count: fmean(skewness(one, units, count) for one in touched) for count in parts}
    squares = sum(log(count) ** 2 for count in ratios)
    sigma = sum(log(count) * log(ratio) for count, ratio in ratios.items()) / squares
    return Skew(min(1.0, max(0.0, sigma)))
