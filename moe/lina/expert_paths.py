"""Profiles of expert paths: which expert follows which experts of the layers before (Lina 6.1; step I1).

The path of a token at a layer is the experts that it chose in the l layers before, oldest first. A profile
also counts all shorter suffixes and each layer's own shares, as fallbacks for unseen paths. Layers count
from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Counts = NDArray[np.int64]
Probabilities = NDArray[np.float64]
#: Experts of a path, l (3 in the paper).
PATH_LENGTH = 3


@dataclass(frozen=True)
class FollowingCounts:
    """How often each expert of one layer followed each path of one length.

    Attributes:
        codes: (paths): the paths that were seen, ascending, as `path_codes`.
        counts: (paths, experts).
    """

    codes: Counts
    counts: Counts

    def find(self, codes: Counts) -> tuple[Counts, NDArray[np.bool_]]:
        """Return the row of each path, and whether it was seen."""
        if not len(self.codes):
            return np.zeros(len(codes), dtype=np.int64), np.zeros(len(codes), dtype=bool)
        rows = np.minimum(np.searchsorted(self.codes, codes), len(self.codes) - 1)
        return rows, self.codes[rows] == codes


@dataclass(frozen=True)
class PathProfile:
    """Counts of paths at every layer of a model.

    Attributes:
        experts: experts of each layer.
        path_length: l.
        following: by layer and length of the suffix, from layer l on.
        shares: for each layer, tokens by chosen expert.
    """

    experts: tuple[int, ...]
    path_length: int
    following: Mapping[tuple[int, int], FollowingCounts]
    shares: tuple[Counts, ...]

    def can_estimate(self, layer: int) -> bool:
        """Whether the experts of a layer can be estimated: not in the first l layers, nor without tokens."""
        return self.path_length <= layer < len(self.experts) and bool(self.shares[layer].any())

    def distributions(self, layer: int, paths: Counts) -> Probabilities:
        """Return the probability of each expert of a layer after each path, as (paths, experts).

        An unseen path drops its oldest expert until it was seen; then the layer's shares count.

        Args:
            paths: (paths, l).

        Raises:
            ValueError: the layer cannot be estimated, or `paths` has another length or unknown experts.
        """
        if not self.can_estimate(layer):
            raise ValueError(
                f"layer is {layer}; it must have {self.path_length} layers before it and profiled tokens"
            )
        before = self.experts[layer - self.path_length : layer]
        paths = check_choices(paths, before)
        base = max(self.experts)
        found = np.tile(self.shares[layer], (len(paths), 1))
        for length in range(1, self.path_length + 1):
            table = self.following[layer, length]
            rows, seen = table.find(path_codes(paths[:, self.path_length - length :], base))
            found[seen] = table.counts[rows[seen]]
        return np.asarray(found / found.sum(axis=1, keepdims=True))


def path_codes(paths: Counts, base: int) -> Counts:
    """Return paths (paths, length) as numbers whose digits to a base are their experts, the oldest first."""
    codes = np.zeros(len(paths), dtype=np.int64)
    for column in paths.T:
        codes = codes * base + column
    return codes


def profile_paths(choices: Counts, experts: Sequence[int], path_length: int = PATH_LENGTH) -> PathProfile:
    """Return the profile of tokens whose best expert at each layer was recorded.

    Args:
        choices: (tokens, layers), from a phase of training in which the balance loss is stable.
        experts: experts of each layer.

    Raises:
        ValueError: `choices` has another shape or unknown experts, or there are too many paths to number.
    """
    if path_length < 1:
        raise ValueError(f"path_length is {path_length}; it must be at least 1")
    if any(each < 1 for each in experts):
        raise ValueError(f"experts are {list(experts)}; each layer must have at least 1")
    base = max(experts, default=1)
    if base**path_length >= 2**63:
        raise ValueError(f"path_length is {path_length}; paths among {base} experts must fit 63 bits")
    choices = check_choices(choices, experts)
    layers = range(len(experts))
    return PathProfile(
        tuple(experts),
        path_length,
        {
            (layer, length): _count(choices[:, layer - length : layer + 1], experts[layer], base)
            for layer in layers[path_length:]
            for length in range(1, path_length + 1)
        },
        tuple(np.bincount(choices[:, layer], minlength=experts[layer]) for layer in layers),
    )


def _count(choices: Counts, experts: int, base: int) -> FollowingCounts:
    codes, rows = np.unique(path_codes(choices[:, :-1], base), return_inverse=True)
    flat = np.bincount(rows * experts + choices[:, -1], minlength=len(codes) * experts)
    return FollowingCounts(codes, flat.reshape(len(codes), experts))


def check_choices(choices: Counts, experts: Sequence[int]) -> Counts:
    """Return experts by token and layer as whole numbers.

    Raises:
        ValueError: there is no column for each layer, or an expert is unknown.
    """
    choices = np.asarray(choices, dtype=np.int64)
    if choices.ndim != 2 or choices.shape[1] != len(experts):
        raise ValueError(f"choices have the shape {choices.shape}; it must be (tokens, {len(experts)})")
    for layer, number in enumerate(experts):
        column = choices[:, layer]
        if column.size and not 0 <= column.min() <= column.max() < number:
            unknown = column.min() if column.min() < 0 else column.max()
            raise ValueError(f"column {layer} has expert {unknown}; experts are 0 to {number - 1}")
    return choices
