"""Recommends from a user's history: rows of one large table, some of them far more popular than others.

The table's gradient is dense, and nearly all zeros. With `whole` all gradients are whole numbers, so that
their sums are exact in any order; each iteration reports a checksum of all parameters.
"""

from __future__ import annotations

import zlib
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from punctual import TrainingFunction

SAMPLES = 1 << 16
CHOICES = 64


class Histories(Dataset[tuple[Tensor, Tensor]]):
    """Histories and the choices that followed. An item's popularity falls as a power of its rank."""

    def __init__(self, items: int, seen: int, power: float, beyond: float) -> None:
        self.seen = seen
        weights = (torch.arange(items, dtype=torch.float64) + beyond) ** -power
        self.until = (weights.cumsum(0) / weights.sum()).float()
        # Neighbours in the table are not equally popular.
        self.places = torch.randperm(items, generator=torch.Generator().manual_seed(1))

    def __len__(self) -> int:
        return SAMPLES

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        generator = torch.Generator().manual_seed(index)
        drawn = torch.rand(self.seen, generator=generator)
        ranks = torch.searchsorted(self.until, drawn).clamp(max=len(self.places) - 1)
        return self.places[ranks], torch.randint(CHOICES, (), generator=generator)


class Towers(nn.Module):
    """The sum of the history's rows, and layers on top of it."""

    def __init__(self, items: int, width: int, hidden: int) -> None:
        super().__init__()
        self.items = nn.EmbeddingBag(items, width, mode="sum")
        self.layers = nn.Sequential(nn.Linear(width, hidden), nn.ReLU(), nn.Linear(hidden, CHOICES))
        nn.init.normal_(self.items.weight, std=0.1)

    def forward(self, seen: Tensor) -> Tensor:
        """Return a score of each choice."""
        return self.layers(self.items(seen))


class Sums(nn.Module):
    """The sum of the history's rows and of a vector for each sample, so that gradients count."""

    def __init__(self, items: int, width: int) -> None:
        super().__init__()
        self.items = nn.EmbeddingBag(items, width, mode="sum")
        self.bias = nn.Parameter(torch.zeros(width))

    def forward(self, seen: Tensor) -> Tensor:
        """Return the sum of its elements."""
        return (self.items(seen) + self.bias).sum()


class Popular(TrainingFunction):
    """Learns `items` rows of `width` from `seen` of them in each sample."""

    def init_model(self) -> nn.Module:
        chosen = self.hyperparameters
        if chosen.get("whole"):
            return Sums(chosen["items"], chosen["width"])
        return Towers(chosen["items"], chosen["width"], chosen["hidden"])

    def init_dataset(self) -> Dataset[Any]:
        chosen = self.hyperparameters
        return Histories(chosen["items"], chosen["seen"], chosen["power"], chosen["beyond"])

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=2.0**-6)

    def train(self, batch: Any, model: nn.Module) -> Tensor | tuple[Tensor, dict[str, float]]:
        seen, chosen = batch
        if self.hyperparameters.get("whole"):
            return model(seen), {"bits": float(_checksum(model))}
        return nn.functional.cross_entropy(model(seen), chosen)


def _checksum(model: nn.Module) -> int:
    """Return a checksum of all parameters, bit by bit; below 2^32."""
    found = 0
    for each in model.parameters():
        found = zlib.crc32(memoryview(each.detach().cpu().numpy()).cast("B"), found)
    return found
