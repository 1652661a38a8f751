"""The gate decision of adaptive gating: one expert where the gate is sure, two where it is not (5.3).

This is the reference of the rule on arrays; `punctual.moe` applies the same rule to tensors.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

import numpy as np
from numpy.typing import NDArray

#: A margin this close above the threshold counts as equal: 0.45 - 0.35 exceeds 0.1 in binary64.
MARGIN_TOLERANCE = 1e-6
#: Stands in `Decision.second` for tokens with one expert.
NO_EXPERT = -1

Probabilities = NDArray[np.float64]


class Margin(StrEnum):
    """How the margin between the best two probabilities is normalised.

    ALL_EXPERTS uses the softmax over all experts, as the paper's figures show. BEST_TWO divides by the sum of
    the two, so fewer tokens get a second expert.
    """

    ALL_EXPERTS = "all_experts"
    BEST_TWO = "best_two"


@dataclass(frozen=True)
class Decision:
    """Experts chosen for a batch of tokens.

    Attributes:
        first: [tokens] best expert.
        second: [tokens] second-best expert, or NO_EXPERT for a token with one expert.
        margin: [tokens] lead of the best expert; infinite where there is only one expert.
    """

    first: NDArray[np.int64]
    second: NDArray[np.int64]
    margin: NDArray[np.float64]

    @property
    def has_two(self) -> NDArray[np.bool_]:
        """[tokens] Whether the token has two experts."""
        return np.asarray(self.second != NO_EXPERT)

    @property
    def two_expert_share(self) -> float:
        """Share of tokens with two experts; 0 without tokens."""
        return float(self.has_two.mean()) if len(self.first) else 0.0


def softmax(logits: NDArray[np.float64]) -> Probabilities:
    """Return the probabilities [tokens, experts] of logits of that shape."""
    logits = np.asarray(logits, np.float64)
    powers = np.exp(logits - logits.max(axis=-1, keepdims=True))
    return np.asarray(powers / powers.sum(axis=-1, keepdims=True))


def decide(probabilities: Probabilities, threshold: float, margin: Margin = Margin.ALL_EXPERTS) -> Decision:
    """Choose one or two experts for every token. Ties go to the lower expert id.

    Args:
        probabilities: [tokens, experts].
        threshold: a token gets two experts if its margin is at most this. 1 gives every token two, a
            negative threshold gives every token one.

    Raises:
        ValueError: `probabilities` is not a matrix with experts, or `threshold` is not finite.
    """
    probabilities = check_probabilities(probabilities)
    if not isfinite(threshold):
        raise ValueError(f"threshold is {threshold}; it must be a finite number")
    tokens, experts = probabilities.shape
    first = probabilities.argmax(axis=1)
    if experts == 1:
        return Decision(first, np.full(tokens, NO_EXPERT), np.full(tokens, np.inf))
    rows = np.arange(tokens)
    others = probabilities.copy()
    others[rows, first] = -np.inf
    second = others.argmax(axis=1)
    best, next_best = probabilities[rows, first], probabilities[rows, second]
    lead = best - next_best
    if margin is Margin.BEST_TWO:
        lead = lead / (best + next_best)
    return Decision(first, np.where(lead <= threshold + MARGIN_TOLERANCE, second, NO_EXPERT), lead)


def check_probabilities(probabilities: Probabilities) -> Probabilities:
    """Return the probabilities as a float64 matrix. Raises ValueError unless the shape is [tokens, experts]
    with at least one expert."""
    checked = np.asarray(probabilities, np.float64)
    if checked.ndim != 2 or checked.shape[1] < 1:
        raise ValueError(f"probabilities have shape {checked.shape}; the shape must be (tokens, experts)")
    return checked
