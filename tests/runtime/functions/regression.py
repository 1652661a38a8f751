"""A small regression whose special behaviours are hyperparameters; the tests train it."""

from __future__ import annotations

import sys
import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset

from punctual import TrainingFunction, artifact_path, current_iteration, sample_rand


class NoisyPoints(Dataset[tuple[Tensor, Tensor]]):
    """Points whose inputs get fresh noise from the global generator each time they are drawn."""

    def __init__(self, count: int) -> None:
        self.count = count

    def __len__(self) -> int:
        return self.count

    def __getitem__(self, index: int) -> tuple[Tensor, Tensor]:
        point = torch.randn(8, generator=torch.Generator().manual_seed(index))
        return point + 0.1 * torch.randn(8), point.sum().tanh()


class Regression(TrainingFunction):
    """Fits a smooth function of eight numbers."""

    def __init__(self, hyperparameters: Any) -> None:
        super().__init__(hyperparameters)
        self.iterations_seen = 0
        self.option = self.hyperparameters.get

    def init_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(8, 24), nn.LayerNorm(24), nn.Tanh(), nn.Linear(24, 1))

    def init_dataset(self) -> Dataset[Any]:
        return NoisyPoints(200)

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.01)

    def init_scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        return torch.optim.lr_scheduler.StepLR(optimizer, step_size=40, gamma=0.7)

    def train(self, batch: Any, model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
        inputs, targets = batch
        self.iterations_seen += 1
        if current_iteration() == self.option("fail_at"):
            raise RuntimeError("no class called 'igloo'\nConnection closed by peer")
        if current_iteration() == self.option("slow_at"):
            time.sleep(0.4)
        if self.option("dropout"):
            inputs = inputs * (sample_rand(8) >= 0.1)
        print(f"iteration {current_iteration()}")
        errors = model(inputs).squeeze(1) - targets
        distance = errors.abs().mean()
        if current_iteration() == self.option("nan_at"):
            errors = errors / 0.0 * 0.0
        return (errors**2).mean(), {"distance": distance / 0 if self.option("infinite") else distance}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        artifact_path("note.txt").write_text("kept")
        points = torch.randn(100, 8, generator=torch.Generator().manual_seed(99))
        return {"validation_loss": ((model(points).squeeze(1) - points.sum(1).tanh()) ** 2).mean().item()}

    def should_stop(self, metrics: Any) -> bool:
        return self.iterations_seen >= self.option("patience", sys.maxsize)

    def state_dict(self) -> dict[str, Any]:
        return {"iterations_seen": self.iterations_seen}

    def load_state_dict(self, state: Any) -> None:
        self.iterations_seen = state["iterations_seen"]
