"""Steps of a training loop left in `train()` are refused if they would change the result."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn

from punctual import current_iteration
from tests.runtime.function.test_models_in_train import Points
from tests.runtime.in_process import runner_of
from workers.runtime.failures import WorkerFailureError


class Stepping(Points):
    """A function with the parts of a training loop."""

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        self.optimizer = super().init_optimizer(model)
        return self.optimizer


class WholeLoop(Stepping):
    def train(self, batch: Any, model: nn.Module) -> Any:
        super().train(batch, model).backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        return super().train(batch, model)


class ClippedTooEarly(Points):
    def train(self, batch: Any, model: nn.Module) -> Any:
        loss = super().train(batch, model)
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return loss


class SteppedTwice(Points):
    def init_scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        self.scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 10)
        return self.scheduler

    def train(self, batch: Any, model: nn.Module) -> Any:
        if current_iteration() > 0:
            self.scheduler.step()
        return super().train(batch, model)


class SchedulerOfItsOwn(SteppedTwice):
    def init_scheduler(self, optimizer: torch.optim.Optimizer) -> Any:
        super().init_scheduler(optimizer)


class Scaling(Points):
    def train(self, batch: Any, model: nn.Module) -> Any:
        self.scaler = torch.amp.GradScaler("cpu")
        return self.scaler.scale(super().train(batch, model))


def _train(function: Points) -> None:
    runner = runner_of(function)
    for iteration in range(2):
        runner.run(iteration)


@pytest.mark.parametrize(
    ("kind", "problem"),
    [
        (WholeLoop, "train() must not call backward() and optimizer.step()"),
        (ClippedTooEarly, "train() calls clip_grad_norm_(), and gradients are computed after"),
        (SteppedTwice, "train() must not step the scheduler that init_scheduler() returned"),
        (SchedulerOfItsOwn, "train() steps a scheduler that no state has"),
        (Scaling, "train() scales its loss with a GradScaler"),
    ],
)
def test_steps_left_in_train_are_refused(alone: None, kind: type[Points], problem: str) -> None:
    with pytest.raises(WorkerFailureError) as caught:
        _train(kind({}))
    assert caught.value.message.startswith(problem)
    assert "docs/functions.md" in caught.value.message


class StepsWithoutGradients(Stepping):
    def train(self, batch: Any, model: nn.Module) -> Any:
        self.optimizer.step()
        return super().train(batch, model)


class SavesItsScheduler(SchedulerOfItsOwn):
    def state_dict(self) -> Any:
        return self.scheduler.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.scheduler.load_state_dict(state)


class SwitchesGradientsOff(Points):
    def train(self, batch: Any, model: nn.Module) -> Any:
        loss = super().train(batch, model)
        torch.set_grad_enabled(False)
        return loss


@pytest.mark.parametrize("kind", [StepsWithoutGradients, SavesItsScheduler, SwitchesGradientsOff])
def test_steps_without_effect_are_accepted(alone: None, kind: type[Points]) -> None:
    _train(kind({}))
