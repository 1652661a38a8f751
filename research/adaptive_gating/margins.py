"""Two-expert shares by threshold, of a gate with normally distributed logits.

One number is fitted: the spread of the logits, so that the share at T = 0.1 is that of a task.
"""

from __future__ import annotations

from functools import cache

import numpy as np

from moe.gating.gate import decide, softmax
from research.adaptive_gating.model import EXPERTS

FITTED_THRESHOLD = 0.1
TOKENS = 5000
#: Spreads between which the fitted one is searched.
_NARROWEST, _WIDEST = 0.1, 100.0


def two_expert_share(spread: float, threshold: float) -> float:
    """Return the share of two-expert tokens for a standard deviation of the logits."""
    logits = spread * np.random.default_rng(0).standard_normal((TOKENS, EXPERTS))
    return decide(softmax(logits), threshold).two_expert_share


@cache
def fit_spread(share: float) -> float:
    """Return the spread of the logits at which `share` of the tokens has two experts at T = 0.1."""
    narrow, wide = _NARROWEST, _WIDEST
    for _ in range(25):
        middle = (narrow * wide) ** 0.5
        if two_expert_share(middle, FITTED_THRESHOLD) > share:
            narrow = middle
        else:
            wide = middle
    return wide
