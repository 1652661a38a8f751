"""Tensors of given sizes, whose gradients are ready in a given order: each is fitted to a target.

Every gradient is computed from the parameter and the batch. Tensors form a chain, so that the first of them
is always ready first.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from punctual import TrainingFunction

SAMPLES = 4096


class Noise(Dataset[Tensor]):
    """Errors of the targets of a sample."""

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> Tensor:
        return 0.1 * torch.randn((), generator=torch.Generator().manual_seed(index))


class Fit(torch.autograd.Function):
    """Adds half the squared distance of a tensor from its target to a loss."""

    @staticmethod
    def forward(context: Any, loss: Tensor, tensor: Tensor, target: Tensor, factor: float) -> Tensor:
        context.save_for_backward(tensor, target)
        context.factor = factor
        return loss + 0.5 * torch.dist(tensor, target) ** 2 / len(tensor)

    @staticmethod
    def backward(context: Any, *gradients: Tensor) -> tuple[Tensor, Tensor, None, None]:
        tensor, target = context.saved_tensors
        return gradients[0], torch.sub(tensor, target, alpha=context.factor), None, None


class Chain(nn.Module):
    """Tensors with given numbers of elements, in the order in which their gradients are ready."""

    def __init__(self, elements: list[int]) -> None:
        super().__init__()
        # DDP fills its buckets from the last parameter on, the order in which it expects gradients.
        self.tensors = nn.ParameterDict(
            {name_of(place): torch.zeros(elements[place]) for place in reversed(range(len(elements)))}
        )
        self.targets = [
            torch.randn(count, generator=torch.Generator().manual_seed(place))
            for place, count in enumerate(elements)
        ]

    def forward(self, noise: Tensor) -> Tensor:
        """Return half the mean squared distance of all tensors from targets that samples disturb."""
        factor = 1.0 + float(noise.mean())
        loss = torch.zeros(())
        for place in reversed(range(len(self.targets))):
            loss = Fit.apply(loss, self.tensors[name_of(place)], self.targets[place], factor)
        return loss


def name_of(place: int) -> str:
    """Return the name of a tensor in the dictionary of parameters."""
    return f"t{place:03d}"


class Shape(TrainingFunction):
    """Fits tensors with the given `elements`."""

    def init_model(self) -> nn.Module:
        return Chain(list(self.hyperparameters["elements"]))

    def init_dataset(self) -> Dataset[Any]:
        return Noise()

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05)

    def train(self, batch: Any, model: nn.Module) -> Tensor:
        return model(batch)
