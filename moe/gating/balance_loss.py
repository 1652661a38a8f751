"""The balance loss of adaptive gating, over the tokens with one expert (equation 5.4).

Second experts are not balanced on purpose: a token gets two where both are about equally good.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from moe.gating.gate import Decision, Probabilities, check_probabilities

#: Weight of each layer's balance loss in the total loss.
WEIGHT = 0.01


def balance_loss(
    probabilities: Probabilities, decision: Decision, is_counted: NDArray[np.bool_] | None = None
) -> float:
    """Return experts · Σ (share of one-expert tokens) · (mean probability of all tokens), for one layer.

    The loss is 1 for even routing, and 0 where every token has two experts.

    Args:
        probabilities: [tokens, experts].
        is_counted: [tokens] False for padding, which neither shares nor means include.

    Raises:
        ValueError: the shapes do not match.
    """
    return _loss(probabilities, decision, is_counted, ~decision.has_two)


def classical_balance_loss(
    probabilities: Probabilities, decision: Decision, is_counted: NDArray[np.bool_] | None = None
) -> float:
    """Return the same over the first experts of all tokens, as gates with fixed k define it."""
    return _loss(probabilities, decision, is_counted, np.ones(len(decision.first), bool))


def _loss(
    probabilities: Probabilities,
    decision: Decision,
    is_counted: NDArray[np.bool_] | None,
    is_balanced: NDArray[np.bool_],
) -> float:
    probabilities = check_probabilities(probabilities)
    tokens, experts = probabilities.shape
    counted = np.ones(tokens, bool) if is_counted is None else np.asarray(is_counted, bool)
    if counted.shape != (tokens,) or decision.first.shape != (tokens,):
        raise ValueError(
            f"probabilities have {tokens} tokens, is_counted has shape {counted.shape} and the decision "
            f"{decision.first.shape}; all must have the same tokens"
        )
    chosen = decision.first[counted & is_balanced]
    if not len(chosen):
        return 0.0
    shares = np.bincount(chosen, minlength=experts) / len(chosen)
    return float(experts * shares @ probabilities[counted].mean(axis=0))
