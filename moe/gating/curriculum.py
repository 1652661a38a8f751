"""The order of samples in the next epoch: samples with similar two-expert shares are neighbours (5.4).

Ranks wait for the slowest one. Ranks that train similar samples at the same time wait less. The order depends
on the recorded samples alone, not on the number of ranks.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

import numpy as np
from numpy.typing import NDArray

#: Similarities and shares are rounded to this many decimals, so that rounding errors do not decide ties.
_DECIMALS = 9

Order = NDArray[np.int64]


class Curriculum(StrEnum):
    """COSINE orders by similarity to the simplest sample, as published. MAGNITUDE orders by the two-expert
    share itself, which saves more time."""

    COSINE = "cosine"
    MAGNITUDE = "magnitude"


@dataclass(frozen=True)
class SampleRecord:
    """Routing of the samples of a data set in the epoch before.

    Attributes:
        tokens: [samples, layers] tokens of the sample in each MoE layer; 0 in all layers if the sample was
            not trained on.
        two_expert_tokens: [samples, layers] those of them with two experts.
    """

    tokens: NDArray[np.int64]
    two_expert_tokens: NDArray[np.int64]

    def __post_init__(self) -> None:
        tokens, two = self.tokens, self.two_expert_tokens
        if tokens.ndim != 2 or tokens.shape != two.shape:
            raise ValueError(
                f"tokens have shape {tokens.shape} and two_expert_tokens {two.shape}; both must have the "
                "shape (samples, layers)"
            )
        if np.any(two < 0) or np.any(two > tokens):
            raise ValueError("two_expert_tokens must lie between 0 and the sample's tokens")

    @property
    def complexity(self) -> NDArray[np.float64]:
        """[samples, layers] Share of two-expert tokens; 0 where a layer saw no token."""
        return self.two_expert_tokens / np.maximum(self.tokens, 1)


def order_samples(record: SampleRecord, curriculum: Curriculum) -> Order:
    """Return every sample once, in the order of the next epoch. Samples without a record come last."""
    is_recorded = (record.tokens > 0).any(axis=1)
    recorded, unknown = np.flatnonzero(is_recorded), np.flatnonzero(~is_recorded)
    if not len(recorded):
        return unknown
    counts = record.two_expert_tokens[recorded].sum(axis=1)
    shares = record.complexity[recorded]
    # A sample without two-expert tokens would be the anchor, and no cosine to a zero vector exists.
    if curriculum is Curriculum.MAGNITUDE or counts.min() == 0:
        order = np.argsort(_magnitude(shares), kind="stable")
    else:
        order = _order_by_similarity(shares, int(counts.argmin()))
    return np.concatenate((recorded[order], unknown))


def _order_by_similarity(shares: NDArray[np.float64], anchor: int) -> Order:
    similarity = np.round(cosine_similarity(shares, anchor), _DECIMALS)
    is_other = np.arange(len(shares)) != anchor
    return np.lexsort((_magnitude(shares), -similarity, is_other))


def _magnitude(shares: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.asarray(np.round(shares.sum(axis=1), _DECIMALS))


def cosine_similarity(shares: NDArray[np.float64], anchor: int) -> NDArray[np.float64]:
    """Return [samples] the cosine of each sample's shares and the anchor's. No sample may be all zeros."""
    lengths = np.linalg.norm(shares, axis=1)
    return np.asarray(shares @ shares[anchor] / (lengths * lengths[anchor]))


def deal(order: Order, ranks: int, samples_per_rank: int) -> NDArray[np.int64]:
    """Return [steps, ranks, samples_per_rank]: consecutive global batches, with neighbours on the same rank.
    An incomplete last batch is left out.

    Raises:
        ValueError: `ranks` or `samples_per_rank` is less than 1.
    """
    if ranks < 1 or samples_per_rank < 1:
        raise ValueError(f"ranks is {ranks} and samples_per_rank {samples_per_rank}; both must be at least 1")
    steps = len(order) // (ranks * samples_per_rank)
    return order[: steps * ranks * samples_per_rank].reshape(steps, ranks, samples_per_rank)
