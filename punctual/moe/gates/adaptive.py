"""Adaptive gating: a second expert only if the gate is undecided between its best two ("Adaptive Gating in
Mixture-of-Experts based Language Models", section 4.1)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from punctual.moe.gates.gate import Gate, Routing, best_experts

#: A margin equals the threshold if it differs by less than this: 0.45 - 0.35 exceeds 0.1 in binary.
MARGIN_TOLERANCE = 1e-6


@dataclass(frozen=True)
class Adaptive(Gate):
    """Sends a token to its best expert, and to the second one if the two probabilities are close.

    Attributes:
        threshold: largest difference of the best two probabilities at which both experts are used. 1 means
            two experts for every token; 0 means two for exact ties only.
    """

    threshold: float = 0.1

    def __post_init__(self) -> None:
        if isinstance(self.threshold, bool) or not isinstance(self.threshold, int | float):
            raise ValueError(f"threshold is {self.threshold!r}; it must be a number.")
        if not 0 <= self.threshold <= 1:
            raise ValueError(f"threshold is {self.threshold!r}; it must be between 0 and 1.")

    def check(self, experts: int) -> None:
        """Accept any number of experts; with a single one every token goes there once."""

    def route(self, probabilities: Tensor) -> Routing:
        """Compare the best two probabilities; tokens of one expert count in the balance loss (Eq. 4)."""
        experts = best_experts(probabilities, min(2, probabilities.shape[1]))
        weights = probabilities.gather(1, experts)
        is_used = torch.ones_like(experts, dtype=torch.bool)
        if experts.shape[1] == 2:
            best, second = weights.detach().unbind(dim=1)
            is_used[:, 1] = best - second <= self.threshold + MARGIN_TOLERANCE
        return Routing(probabilities, experts, is_used, weights, is_balanced=is_used.sum(dim=1) == 1)
