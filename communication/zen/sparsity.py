"""Characteristics of sparse gradients: density, overlap, densification and skewness (Zen 3.2.2).

A sparse gradient is described by its indices: the places of its non-zeros in the flat tensor, counted from 1
as in the paper, ascending, distinct.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce

import numpy as np
from numpy.typing import NDArray

from communication.zen.indices import Indices


def overlap(one: Indices, other: Indices) -> float:
    """Return the overlap of two workers' indices (Definition 3.3): shared ones over the smaller number; 0 if
    one has none."""
    fewest = min(len(one), len(other))
    return len(np.intersect1d(one, other, assume_unique=True)) / fewest if fewest else 0.0


def union(workers: Sequence[Indices]) -> Indices:
    """Return the indices of the sum of several workers' gradients, unless non-zeros cancel."""
    return reduce(np.union1d, workers, np.empty(0, np.int64))


def density(indices: Indices, elements: int) -> float:
    """Return the share of the tensor's ``elements`` that are not zero."""
    return len(indices) / elements if elements else 0.0


def part_counts(indices: Indices, elements: int, parts: int) -> NDArray[np.int64]:
    """Return the non-zeros in each of ``parts`` contiguous equal parts of the tensor (sizes may differ by one
    element)."""
    return np.bincount(contiguous_parts(indices, elements, parts), minlength=parts)


def contiguous_parts(indices: Indices, elements: int, parts: int) -> NDArray[np.int64]:
    """Return the contiguous part of each index: part i begins at ``i * elements // parts + 1``."""
    edges = np.arange(1, parts) * elements // parts
    return np.searchsorted(edges, indices - 1, side="right")


def skewness(indices: Indices, elements: int, parts: int) -> float:
    """Return the density of the fullest of ``parts`` contiguous equal parts over the tensor's (Definition
    3.5); 1 without non-zeros."""
    if not len(indices):
        return 1.0
    return float(part_counts(indices, elements, parts).max()) * parts / len(indices)
