"""Every token goes to its best k experts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from punctual.moe.gates.gate import Gate, Routing, best_experts


@dataclass(frozen=True)
class TopK(Gate):
    """Sends every token to its best k experts. The gate's probabilities weight their outputs."""

    k: int = 2

    def __post_init__(self) -> None:
        if not isinstance(self.k, int) or isinstance(self.k, bool) or self.k < 1:
            raise ValueError(f"k is {self.k!r}; it must be a whole number of at least 1.")

    def check(self, experts: int) -> None:
        """Raise ValueError if there are fewer than k experts."""
        if experts < self.k:
            raise ValueError(f"TopK({self.k}) needs at least {self.k} experts; the layer has {experts}.")

    def route(self, probabilities: Tensor) -> Routing:
        """Use the best k of each token; all tokens count in the balance loss."""
        experts = best_experts(probabilities, self.k)
        return Routing(
            probabilities,
            experts,
            is_used=torch.ones_like(experts, dtype=torch.bool),
            weights=probabilities.gather(1, experts),
            is_balanced=torch.ones_like(experts[:, 0], dtype=torch.bool),
        )
