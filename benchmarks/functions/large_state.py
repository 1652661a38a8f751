"""A function with state of a chosen size and nearly free iterations.

Most of its weights are frozen, as when the head of a pretrained model is trained. So the time of a change of
workers is the time for its state.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.utils.data import Dataset, TensorDataset

from punctual import TrainingFunction

TENSOR_BYTES = 16 << 20


class Backbone(nn.Module):
    """Frozen weights, of which only one output is used, and a trained head."""

    def __init__(self, state_bytes: int) -> None:
        super().__init__()
        count = max(1, state_bytes // TENSOR_BYTES)
        self.frozen = nn.ParameterList(
            nn.Parameter(torch.randn(TENSOR_BYTES // 4), requires_grad=False) for _ in range(count)
        )
        self.head = nn.Linear(8, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        """Return the head's output."""
        scaled: Tensor = self.head(inputs) + self.frozen[0][0]
        return scaled


class LargeState(TrainingFunction):
    """Learns a line beside `state_bytes` of frozen weights."""

    def init_model(self) -> nn.Module:
        """Return frozen weights and a head."""
        return Backbone(int(self.hyperparameters["state_bytes"]))

    def init_dataset(self) -> Dataset:
        """Return points on a line."""
        points = torch.linspace(-1, 1, 256).unsqueeze(1).repeat(1, 8)
        return TensorDataset(points, points[:, :1] * 3 + 1)

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        """Return Adam on the head."""
        return torch.optim.Adam((p for p in model.parameters() if p.requires_grad), lr=1e-3)

    def train(self, batch: tuple[Tensor, Tensor], model: nn.Module) -> Tensor:
        """Return the squared error."""
        inputs, wanted = batch
        return nn.functional.mse_loss(model(inputs), wanted)
