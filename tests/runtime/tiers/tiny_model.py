"""A small model with two layers of experts, and data that it learns."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from torch.optim import Optimizer

from moe.moesys.cache import Key
from punctual.moe import MoELayer, TopK
from workers.runtime.tiers.disk_share import DiskShare
from workers.runtime.tiers.tiered_experts import TieredExperts

WIDTH, EXPERTS, LAYERS = 32, 8, 2
MakeOptimizer = Callable[[nn.Module], Optimizer]


class TinyModel(nn.Module):
    def __init__(self, seed: int = 0) -> None:
        super().__init__()
        torch.manual_seed(seed)
        self.layers = nn.ModuleList(
            MoELayer(WIDTH, 2 * WIDTH, EXPERTS, TopK(1), balance_weight=0.0) for _ in range(LAYERS)
        )
        self.head = nn.Linear(WIDTH, 1)

    def forward(self, rows: Tensor) -> Tensor:
        for layer in self.layers:
            rows = rows + layer(rows)
        output: Tensor = self.head(rows)
        return output

    def experts(self) -> dict[Key, nn.Module]:
        return {
            (index, expert): module
            for index, layer in enumerate(self.layers)
            for expert, module in enumerate(layer.experts)
        }


def adam(model: nn.Module) -> Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=1e-2)


def momentum(model: nn.Module) -> Optimizer:
    return torch.optim.SGD(model.parameters(), lr=1e-2, momentum=0.9)


def loss_of(model: nn.Module, step: int) -> Tensor:
    inputs = torch.randn(24, WIDTH, generator=torch.Generator().manual_seed(step))
    return functional.mse_loss(model(inputs), inputs.sin().sum(1, keepdim=True))


def train(model: nn.Module, optimizer: Optimizer, steps: range, clip: float | None = None) -> list[float]:
    """Train and return the losses."""
    losses = []
    for step in steps:
        loss = loss_of(model, step)
        loss.backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def in_tiers(
    folder: Path, host_entries: int, make: MakeOptimizer = adam, disk: DiskShare | None = None
) -> tuple[TinyModel, Optimizer, TieredExperts]:
    """Return a model whose experts' states lie in files."""
    model = TinyModel()
    optimizer = make(model)
    tiers = TieredExperts(model.experts(), optimizer, folder / "states", host_entries, disk=disk)
    return model, optimizer, tiers
