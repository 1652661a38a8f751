"""FLOPs of a transformer layer with a mixture of experts, by the experts of its tokens.

A multiply-add is two FLOPs. Papers often print multiply-adds (MACs), half of these figures.
"""

from __future__ import annotations

from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import ArrayLike


@dataclass(frozen=True)
class LayerSizes:
    """A transformer layer whose feed-forward network is a mixture of experts.

    Attributes:
        width: elements of a token.
        hidden: inner elements of an expert.
        sequence: tokens that attention reads.
        experts: experts of the gate; 0 for a dense layer, which has no gate.
    """

    width: int
    hidden: int
    sequence: int
    experts: int

    def __post_init__(self) -> None:
        for field in fields(self):
            least = 0 if field.name == "experts" else 1
            value = getattr(self, field.name)
            if value < least:
                raise ValueError(f"{field.name} is {value}; it must be at least {least}")

    @property
    def attention_flops(self) -> int:
        """FLOPs per token of the four projections and of the products with all keys and values."""
        return 2 * 4 * self.width**2 + 4 * self.sequence * self.width

    @property
    def gate_flops(self) -> int:
        """FLOPs per token of the product with the gate's matrix."""
        return 2 * self.width * self.experts

    @property
    def expert_flops(self) -> int:
        """FLOPs per token of one expert: two matrix products."""
        return 2 * 2 * self.width * self.hidden


def flops_per_token(sizes: LayerSizes, experts_per_token: float) -> float:
    """Return the FLOPs of a token in one layer, for a mean number of experts per token."""
    return sizes.attention_flops + sizes.gate_flops + experts_per_token * sizes.expert_flops


def measured_flops(sizes: LayerSizes, tokens: ArrayLike, two_expert_tokens: ArrayLike) -> float:
    """Return the FLOPs of layers of equal sizes from counted tokens.

    Args:
        tokens: [layers] tokens that passed each layer.
        two_expert_tokens: [layers] those of them with two experts.

    Raises:
        ValueError: a layer has more two-expert tokens than tokens.
    """
    counted, two = np.asarray(tokens, np.int64), np.asarray(two_expert_tokens, np.int64)
    if np.any(two < 0) or np.any(two > counted):
        raise ValueError("two_expert_tokens must lie between 0 and the layer's tokens")
    rows = int(np.sum(counted + two))
    return float(int(counted.sum()) * flops_per_token(sizes, 0) + rows * sizes.expert_flops)


def interpolate(top1: float, top2: float, two_expert_share: float) -> float:
    """Return a quantity that is linear in experts per token, from its values under top-1 and top-2."""
    return top1 + two_expert_share * (top2 - top1)


def share_of_top2(two_expert_share: float) -> float:
    """Return rows, bytes of the all-to-all and expert FLOPs relative to top-2: (1 + r) / 2."""
    return (1.0 + two_expert_share) / 2.0


def implied_share(top1: float, top2: float, adaptive: float) -> float:
    """Return the two-expert share at which `interpolate` gives `adaptive`. Raises ValueError if top-1 and
    top-2 are equal."""
    if top1 == top2:
        raise ValueError(f"top-1 and top-2 are both {top1}; they must differ")
    return (adaptive - top1) / (top2 - top1)
