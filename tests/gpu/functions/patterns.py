"""The function that the tests train: noisy patterns, in full or mixed precision, with a given amount of
memory."""

from __future__ import annotations

import time
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import Dataset, TensorDataset

from punctual import TrainingFunction


class Patterns(TrainingFunction):
    """Ten patterns; ``precision`` is `full` or `mixed`, ``memory_bytes`` is held for each sample.

    ``sleep_seconds`` prolongs each iteration, so that events can happen during it.
    """

    def init_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(64, 256), nn.GELU(), nn.BatchNorm1d(256), nn.Linear(256, 10))

    def init_dataset(self) -> Dataset[Any]:
        generator = torch.Generator().manual_seed(0)
        labels = torch.randint(10, (2048,), generator=generator)
        means = torch.randn(10, 64, generator=generator)
        return TensorDataset(means[labels] + torch.randn(2048, 64, generator=generator), labels)

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=3e-3)

    def train(self, batch: Any, model: nn.Module) -> tuple[Tensor, dict[str, Tensor]]:
        samples, labels = batch
        time.sleep(float(self.hyperparameters.get("sleep_seconds") or 0.0))
        held = int(self.hyperparameters.get("memory_bytes") or 0) * len(labels)
        ballast = torch.empty(held, dtype=torch.uint8, device=samples.device)
        mixed = self.hyperparameters.get("precision") == "mixed"
        with torch.autocast(samples.device.type, dtype=torch.bfloat16, enabled=mixed):
            scores = model(samples)
            if mixed and scores.dtype != torch.bfloat16:
                raise TypeError(f"autocast gave {scores.dtype}")
        loss = functional.cross_entropy(scores.float(), labels)
        on_gpu = torch.tensor(float(samples.is_cuda), device=loss.device)
        del ballast
        return loss, {"accuracy": (scores.argmax(1) == labels).float().mean(), "on_gpu": on_gpu}

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        dataset = self.init_dataset()
        device = next(model.parameters()).device
        samples, labels = (tensor.to(device) for tensor in dataset.tensors)
        return {"seen_accuracy": (model(samples).argmax(1) == labels).float().mean().item()}
