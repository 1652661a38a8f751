"""Layers with many weights and little computation, so that the cost of synchronising shows."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from punctual import TrainingFunction


class Points(Dataset[Tensor]):
    """Deterministic points."""

    def __init__(self, width: int) -> None:
        self.width = width

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Tensor:
        return torch.randn(self.width, generator=torch.Generator().manual_seed(index))


class Wide(TrainingFunction):
    """`layers` matrices of `width` times `width`."""

    def init_model(self) -> nn.Module:
        width = self.hyperparameters.get("width", 512)
        layers = [nn.Linear(width, width, bias=False) for _ in range(self.hyperparameters.get("layers", 1))]
        return nn.Sequential(*layers)

    def init_dataset(self) -> Dataset[Any]:
        return Points(self.hyperparameters.get("width", 512))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.01)

    def train(self, batch: Any, model: nn.Module) -> Tensor:
        return (model(batch) ** 2).mean()
