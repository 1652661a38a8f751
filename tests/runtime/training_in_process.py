"""Trains a small function on ranks without workers: what iterations do, and what they refuse."""

from __future__ import annotations

import io
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from punctual import TrainingFunction, current_iteration
from tests.runtime.in_process import CPU, runner_of
from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.parts import TrainingParts
from workers.runtime.iterating.iteration import IterationRunner
from workers.runtime.iterating.training_state import Progress, capture, restore
from workers.runtime.parameter_comparison import ParameterComparison

SIZE, BATCH, SEED = 48, 12, 3


class Table(nn.Module):
    """Rows of a table, then two layers; the first of them begins frozen."""

    def __init__(self) -> None:
        super().__init__()
        self.table = nn.Embedding(SIZE, 4, sparse=True)
        self.first, self.last = nn.Linear(4, 6), nn.Linear(6, 1)
        self.first.requires_grad_(False)
        self.register_buffer("mask", torch.ones(6))

    def forward(self, places: Tensor) -> Tensor:
        hidden = self.first(self.table(places)).tanh()
        answer: Tensor = self.last(hidden * self.mask)
        return answer


Change = Callable[["Changing", Table, int], None]


class Changing(TrainingFunction):
    """Calls `change` at the beginning of every iteration."""

    def __init__(self, hyperparameters: Mapping[str, Any], change: Change) -> None:
        super().__init__(hyperparameters)
        self.change = change

    def init_model(self) -> nn.Module:
        return Table()

    def init_dataset(self) -> TensorDataset:
        places = torch.arange(SIZE)
        return TensorDataset(places, (places / SIZE).sin()[:, None])

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        self.optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return self.optimizer

    def train(self, batch: Any, model: nn.Module) -> Tensor:
        places, targets = batch
        self.change(self, model.module, current_iteration())
        return nn.functional.mse_loss(model(places), targets)


@dataclass
class Trained:
    """The results of a rank."""

    weights: dict[str, Tensor] = field(default_factory=dict)
    gradients_left: int = 0
    refused_after: int | None = None
    message: str = ""


def train(
    change: Change,
    iterations: int = 8,
    *,
    synchronisers: Sequence[Mapping[str, Any]] = (),
    restart_at: int | None = None,
    every: int = 0,
) -> Trained:
    """Train on all ranks of the default group; `restart_at`: continue in new parts from a stored state."""
    function = Changing({}, change)
    parts, runner, comparison = begin(function, synchronisers, iterations, every)
    trained = Trained()
    done = 0
    try:
        for done in range(iterations):
            if done == restart_at:
                buffer = io.BytesIO()
                torch.save(capture(parts, Progress(done), generation=1, global_batch_size=BATCH), buffer)
                function = Changing({}, change)
                parts, runner, comparison = begin(function, synchronisers, iterations, every)
                buffer.seek(0)
                restore(parts, torch.load(buffer, weights_only=True), global_batch_size=BATCH)
            runner.run(done)
            comparison.iteration_done(done + 1)
    except WorkerFailureError as failure:
        trained.refused_after, trained.message = done, failure.message
    trained.weights = {
        name: parameter.detach().clone() for name, parameter in parts.module.named_parameters()
    }
    trained.gradients_left = sum(parameter.grad is not None for parameter in parts.module.parameters())
    return trained


def begin(
    function: Changing, synchronisers: Sequence[Mapping[str, Any]] = (), iterations: int = 8, every: int = 0
) -> tuple[TrainingParts, IterationRunner, ParameterComparison]:
    """Return a generation that is ready to train."""
    runner = runner_of(function, batch=BATCH, seed=SEED, synchronisers=synchronisers, family="lossy")
    module = runner.parts.module
    comparison = ParameterComparison(
        module, every=every, last=iterations, device=CPU, world_size=dist.get_world_size()
    )
    return runner.parts, runner, comparison
