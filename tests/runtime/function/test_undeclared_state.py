"""Attributes that `train()` keeps outside every state are refused, or logged if they may not matter."""

from __future__ import annotations

import copy
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.function.test_models_in_train import Points
from tests.runtime.in_process import runner_of
from workers.runtime.failures import WorkerFailureError


class Averaging(Points):
    """Keeps an average of the weights, as many scripts do."""

    def init_model(self) -> nn.Module:
        model = super().init_model()
        self.average = copy.deepcopy(model)
        return model

    def train(self, batch: Any, model: nn.Module) -> Any:
        for average, new in zip(self.average.parameters(), model.parameters(), strict=True):
            average.data.mul_(0.9).add_(new.data, alpha=0.1)
        return super().train(batch, model)


class InPlace(Points):
    def __init__(self, hyperparameters: Any) -> None:
        super().__init__(hyperparameters)
        self.mean = torch.zeros(6)

    def train(self, batch: Any, model: nn.Module) -> Any:
        self.mean.lerp_(batch[0].mean(0), 0.1)
        return super().train(batch, model)


class Stored(Averaging):
    def state_dict(self) -> Any:
        return self.average.state_dict()

    def load_state_dict(self, state: Any) -> None:
        self.average.load_state_dict(state)


class NotTakenBack(Points):
    def state_dict(self) -> Any:
        return {"seen": 1}


class OfOneIteration(Points):
    """Keeps what later iterations do not need, what never changes, and the model itself."""

    mask: torch.Tensor | None = None

    def init_model(self) -> nn.Module:
        self.model = super().init_model()
        self.teacher = super().init_model()
        self.others = [torch.tensor(float("nan")), torch.zeros(1, device="meta"), torch.ones(2) * 1j]
        self.unknown, self.nowhere, self.complex = self.others
        return self.model

    def train(self, batch: Any, model: Any) -> Any:
        if self.mask is None:
            self.mask = torch.ones(6)
        self.hidden = model[0](batch[0] * self.mask)
        self.samples = len(batch[0])
        return (model[2](self.hidden.tanh()) - self.teacher(batch[0])).square().mean()


class Counting(Points):
    seen = 0

    def train(self, batch: Any, model: nn.Module) -> Any:
        self.seen += 1
        return super().train(batch, model)


def _train(function: Points) -> None:
    runner = runner_of(function)
    for iteration in range(5):
        runner.run(iteration)


def test_a_state_without_a_method_to_load_it_is_refused(alone: None) -> None:
    with pytest.raises(WorkerFailureError) as caught:
        runner_of(NotTakenBack({}))
    assert caught.value.message.startswith("state_dict() returns a state that nothing takes back")


def test_weights_outside_every_state_are_refused(alone: None) -> None:
    with pytest.raises(WorkerFailureError) as caught:
        _train(Averaging({}))
    assert caught.value.message.startswith("train() changes the weights of self.average, which no state has")


@pytest.mark.parametrize("kind", [Stored, OfOneIteration])
def test_stored_or_unneeded_attributes_are_accepted(
    alone: None, kind: type[Points], caplog: pytest.LogCaptureFixture
) -> None:
    _train(kind({}))
    assert not caplog.messages


@pytest.mark.parametrize(("kind", "name"), [(Counting, "seen"), (InPlace, "mean")])
def test_attributes_that_may_matter_are_reported_once(
    alone: None, caplog: pytest.LogCaptureFixture, kind: type[Points], name: str
) -> None:
    _train(kind({}))
    (message,) = caplog.messages
    assert message.startswith(f"train() changes self.{name}, which begins anew whenever the job moves")
