"""The rows that tokens send to experts: one or two for a token, sorted by expert."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from moe.gating.gate import NO_EXPERT, Decision


@dataclass(frozen=True)
class Rows:
    """Rows in the order in which they are sent: by expert, then by token.

    Attributes:
        expert: [rows] expert that receives the row.
        token: [rows] token of the row.
        choice: [rows] 0 for the token's first expert, 1 for its second; column of `combine_weights`.
        counts: [experts] rows per expert.
    """

    expert: NDArray[np.int64]
    token: NDArray[np.int64]
    choice: NDArray[np.int64]
    counts: NDArray[np.int64]


def build_rows(decision: Decision, experts: int) -> Rows:
    """Return the rows of all tokens.

    Raises:
        ValueError: a token has an expert beyond `experts`.
    """
    largest = max(decision.first.max(initial=NO_EXPERT), decision.second.max(initial=NO_EXPERT))
    if largest >= experts:
        raise ValueError(f"a token has expert {largest}; there are {experts}")
    tokens = np.arange(len(decision.first))
    with_two = np.flatnonzero(decision.has_two)
    expert = np.concatenate((decision.first, decision.second[with_two]))
    token = np.concatenate((tokens, with_two))
    choice = np.repeat(np.array((0, 1)), (len(tokens), len(with_two)))
    order = np.lexsort((token, expert))
    return Rows(expert[order], token[order], choice[order], np.bincount(expert, minlength=experts))


def share_of_top2(two_expert_share: float) -> float:
    """Return rows, bytes of the all-to-all and expert FLOPs relative to top-2: (1 + r) / 2."""
    return (1.0 + two_expert_share) / 2.0
