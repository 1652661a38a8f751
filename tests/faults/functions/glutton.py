"""A function that takes memory until it is killed."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from punctual import TrainingFunction


class Glutton(TrainingFunction):
    """Hyperparameters: `global_batch_size`."""

    speed_neutral = {"learning_rate"}

    def init_model(self) -> nn.Module:
        self.held: list[bytes] = []
        return nn.Linear(1, 1)

    def init_dataset(self) -> Dataset[Any]:
        return TensorDataset(torch.zeros(64, 1), torch.zeros(64, 1))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.1)

    def train(self, batch: Any, model: nn.Module) -> Tensor:
        self.held.append(b"x" * (256 << 20))
        return functional.mse_loss(model(batch[0]), batch[1])
