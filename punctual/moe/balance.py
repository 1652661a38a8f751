"""The loss that keeps experts evenly used: experts * sum over experts of (share of first choices * mean
probability).

Shares and numbers of tokens are those of all workers together, so the loss does not depend on how a batch is
split. The loss is linear in the sums of probabilities: each worker computes a part from its own sums, and the
parts add up to the loss.
"""

from __future__ import annotations

from torch import Tensor


def balance_part(probability_sums: Tensor, first_choices: Tensor, tokens: int) -> Tensor:
    """Compute the part of one worker's tokens in a layer's balance loss; 0 if no first choice counts.

    Args:
        probability_sums: (experts): sums of the probabilities of this worker's tokens.
        first_choices: (experts): tokens of all workers by first choice, only those that count.
        tokens: number of tokens of all workers, including those that do not count.
    """
    counted = int(first_choices.sum())
    shares = (first_choices / max(counted, 1)).to(probability_sums)
    return len(shares) * (shares * probability_sums).sum() / max(tokens, 1)
