"""How popular the experts of the next layer will be, estimated from the paths of a batch (Lina 6.1,
equation 4.1 of the thesis; step I2)."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np

from moe.lina.expert_paths import Counts, PathProfile, Probabilities, path_codes


class Estimate(StrEnum):
    """What an estimate keeps of the distribution after each path.

    LITERAL: the k largest probabilities as they are, so the demands of all experts sum to less than all
    devices. NORM: the k largest, scaled to sum to 1. FULL: all.
    """

    LITERAL = "literal"
    NORM = "norm"
    FULL = "full"


@dataclass(frozen=True)
class Popularity:
    """Estimated tokens of the experts of one layer. Estimates of several devices add up.

    Attributes:
        tokens: number of tokens with known paths.
        expected: (experts): tokens; 0 for an expert without estimate.
    """

    tokens: int
    expected: Probabilities

    @property
    def shares(self) -> Probabilities:
        """Share of the tokens that each expert is expected to get."""
        return self.expected / max(1, self.tokens)

    def demands(self, devices: int) -> Probabilities:
        """Return how many devices each expert needs; 0 without estimate."""
        return devices * self.shares


def estimate_popularity(
    profile: PathProfile,
    layer: int,
    paths: Counts,
    experts_per_token: int = 1,
    estimate: Estimate = Estimate.NORM,
) -> Popularity:
    """Return the estimate of one device for its own tokens.

    Args:
        layer: the layer that is estimated.
        paths: (tokens, l): experts of each token in the l layers before, oldest first.
        experts_per_token: k, the number of probabilities that are kept of each distribution.

    Raises:
        ValueError: as `PathProfile.distributions`, or `experts_per_token` is out of range.
    """
    experts = profile.experts[layer]
    if not 1 <= experts_per_token <= experts:
        raise ValueError(f"experts_per_token is {experts_per_token}; it must be from 1 to {experts}")
    paths = np.asarray(paths, dtype=np.int64)
    codes = path_codes(paths, max(profile.experts))
    _, first, tokens = np.unique(codes, return_index=True, return_counts=True)
    kept = _keep(profile.distributions(layer, paths[first]), experts_per_token, estimate)
    return Popularity(len(paths), tokens @ kept)


def _keep(probabilities: Probabilities, experts_per_token: int, estimate: Estimate) -> Probabilities:
    if estimate is Estimate.FULL:
        return probabilities
    # Of equal probabilities that of the lower expert is kept.
    order = np.argsort(-probabilities, axis=1, kind="stable")[:, :experts_per_token]
    kept = np.zeros_like(probabilities)
    np.put_along_axis(kept, order, np.take_along_axis(probabilities, order, axis=1), axis=1)
    return kept / kept.sum(axis=1, keepdims=True) if estimate is Estimate.NORM else kept


def most_popular(tokens: Probabilities | Counts, length: int) -> tuple[int, ...]:
    """Return the experts with most tokens in descending order; of equal ones the lower id first."""
    return tuple(int(expert) for expert in np.argsort(-np.asarray(tokens), kind="stable")[:length])
