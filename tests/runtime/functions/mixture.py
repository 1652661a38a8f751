"""A small mixture of experts that reads its model in every method."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from punctual import TrainingFunction
from punctual.moe import MoELayer, TopK


class Mixture(TrainingFunction):
    """Three experts that drop rows; keeps its model, and evaluates it after every iteration."""

    def init_model(self) -> nn.Module:
        layer = MoELayer(6, 8, experts=3, gate=TopK(2), capacity_factor=0.9, balance_weight=0.5)
        self.model = nn.Sequential(nn.Linear(4, 6), layer, nn.Linear(6, 1))
        return self.model

    def init_dataset(self) -> TensorDataset:
        points = torch.randn(64, 5, 4, generator=torch.Generator().manual_seed(1))
        return TensorDataset(points, points.sin().sum(2, keepdim=True))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)

    def train(self, batch: Any, model: nn.Module) -> Tensor:
        points, targets = batch
        return nn.functional.mse_loss(model(points), targets)

    def should_stop(self, metrics: Mapping[str, float]) -> bool:
        points, targets = self.init_dataset().tensors
        with torch.no_grad():
            loss = nn.functional.mse_loss(self.model(points), targets)
        if not math.isfinite(loss):
            raise RuntimeError(f"the kept model has the loss {loss}")
        return False

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        points, targets = self.init_dataset().tensors
        return {"loss_of_all": nn.functional.mse_loss(model(points), targets).item()}
