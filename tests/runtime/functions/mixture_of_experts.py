"""A small mixture of experts that reads the counts of its tokens itself."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from punctual import TrainingFunction
from punctual.moe import MoELayer, TopK, routing_counts


class MixtureOfExperts(TrainingFunction):
    """Four experts between two linear layers."""

    def init_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(4, 6), MoELayer(6, 8, experts=4, gate=TopK(2)), nn.Linear(6, 1))

    def init_dataset(self) -> TensorDataset:
        points = torch.randn(64, 5, 4, generator=torch.Generator().manual_seed(1))
        return TensorDataset(points, points.sin().sum(2, keepdim=True))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.05)

    def train(self, batch: Any, model: nn.Module) -> tuple[Tensor, dict[str, float]]:
        points, targets = batch
        loss = nn.functional.mse_loss(model(points), targets)
        (counts,) = routing_counts(model).values()
        return loss, {"own_two_expert_share": counts.two_expert_share}
