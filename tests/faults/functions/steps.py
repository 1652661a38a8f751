"""A line fitted to points, which prints when it began each iteration, by a clock that all processes of the
machine share."""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from punctual import TrainingFunction

FEATURES = 8


class Steps(TrainingFunction):
    """Hyperparameters: `global_batch_size`, `learning_rate` [0.05]."""

    speed_neutral = {"learning_rate"}
    iteration = 0

    def init_model(self) -> nn.Module:
        return nn.Linear(FEATURES, 1)

    def init_dataset(self) -> Dataset[Any]:
        places = torch.randn(1024, FEATURES, generator=torch.Generator().manual_seed(0))
        return TensorDataset(places, places.sum(dim=1, keepdim=True))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=float(self.hyperparameters.get("learning_rate", 0.05)))

    def train(self, batch: Any, model: nn.Module) -> Tensor:
        self.iteration += 1
        print(f"STEP {self.iteration} {time.monotonic():.6f}")
        places, heights = batch
        return functional.mse_loss(model(places), heights)

    def state_dict(self) -> Mapping[str, Any]:
        return {"iteration": self.iteration}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self.iteration = int(state["iteration"])
