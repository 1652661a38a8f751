"""A well-behaved function: a line fitted to points. Nearly all of its time on an emulated GPU is the device
model's.

Its neighbours' load on the machine's cores therefore hardly slows it down, and a broken promise was not
broken by a slow step.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from punctual import TrainingFunction

FEATURES = 8


class SmallSteps(TrainingFunction):
    """Hyperparameters: `global_batch_size`, `learning_rate` [0.05], `points` [1024]."""

    speed_neutral = {"learning_rate"}

    def init_model(self) -> nn.Module:
        return nn.Linear(FEATURES, 1)

    def init_dataset(self) -> Dataset[Any]:
        generator = torch.Generator().manual_seed(0)
        places = torch.randn(int(self.hyperparameters.get("points", 1024)), FEATURES, generator=generator)
        return TensorDataset(places, places.sum(dim=1, keepdim=True))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=float(self.hyperparameters.get("learning_rate", 0.05)))

    def train(self, batch: Any, model: nn.Module) -> Tensor:
        places, heights = batch
        return functional.mse_loss(model(places), heights)
