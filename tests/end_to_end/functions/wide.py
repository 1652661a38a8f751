"""A model whose gradients are large compared to the time of computing them, so that it waits for a slow
link."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from punctual import TrainingFunction

WIDTH = 700


class Wide(TrainingFunction):
    """Hyperparameters: `global_batch_size`."""

    speed_neutral = {"learning_rate"}

    def init_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 1))

    def init_dataset(self) -> Dataset[Any]:
        inputs = torch.randn(512, WIDTH, generator=torch.Generator().manual_seed(0))
        return TensorDataset(inputs, inputs[:, :8].sum(dim=1, keepdim=True))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.001)

    def train(self, batch: Any, model: nn.Module) -> Tensor:
        inputs, targets = batch
        return functional.mse_loss(model(inputs), targets)
