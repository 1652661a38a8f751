"""The interface of a gate: it turns probabilities of experts into a choice of experts for each token."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Routing:
    """The experts of each token.

    Attributes:
        probabilities: (tokens, experts), over all experts; gradients flow through it.
        experts: (tokens, choices): ids of each token's best experts, best first.
        is_used: (tokens, choices): whether the token goes to that expert.
        weights: (tokens, choices): factor of that expert's output in the token's; gradients flow through it.
        is_balanced: (tokens): whether the token's best expert counts in the shares of the balance loss.
    """

    probabilities: Tensor
    experts: Tensor
    is_used: Tensor
    weights: Tensor
    is_balanced: Tensor

    @property
    def uses_several(self) -> Tensor:
        """Return (tokens): whether the token goes to more than one expert."""
        return self.is_used.sum(dim=1) > 1


class Gate(ABC):
    """Chooses the experts of each token. A new gate is a file in this package and a line in `__init__.py`.

    A gate is immutable and draws no random numbers.
    """

    @abstractmethod
    def check(self, experts: int) -> None:
        """Raise ValueError if a layer with `experts` experts cannot use this gate."""

    @abstractmethod
    def route(self, probabilities: Tensor) -> Routing:
        """Choose the experts of tokens with these probabilities, of shape (tokens, experts)."""


def gate_probabilities(tokens: Tensor, weight: Tensor) -> Tensor:
    """Compute the softmax over the experts in at least single precision.

    Args:
        tokens: (tokens, width).
        weight: (experts, width).
    """
    precision = torch.promote_types(tokens.dtype, torch.float32)
    # Autocast would compute the product in half precision, which cannot tell close experts apart.
    with torch.autocast(tokens.device.type, enabled=False):
        return torch.softmax(tokens.to(precision) @ weight.to(precision).t(), dim=-1)


def best_experts(probabilities: Tensor, count: int) -> Tensor:
    """Return the ids of each token's `count` best experts, best first; the lowest id wins a tie."""
    left = probabilities.detach()
    found = []
    for _ in range(count):
        # `topk` breaks ties in any way; `argmax` takes the first.
        best = left.argmax(dim=1, keepdim=True)
        found.append(best)
        left = left.scatter(1, best, -torch.inf)
    return torch.cat(found, dim=1)
