"""Unusual and wrong models with mixtures of experts train alike on one worker and on two, or are refused."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from punctual import TrainingFunction, current_iteration
from punctual.moe import Adaptive, MoELayer
from tests.communication.hooks.ranks import run_on_ranks
from tests.runtime.in_process import runner_of
from workers.runtime.failures import WorkerFailureError

RANKS, WIDTH, ITERATIONS = 2, 6, 3


def build_model(*middle: nn.Module) -> nn.Module:
    return nn.Sequential(nn.Linear(4, WIDTH), *middle, nn.Linear(WIDTH, 1))


def layer_of(experts: int = 4, threshold: float = 0.1) -> MoELayer:
    return MoELayer(WIDTH, 8, experts, Adaptive(threshold))


def layer_used_twice() -> nn.Module:
    layer = layer_of()
    return build_model(layer, layer)


def idle_expert() -> nn.Module:
    layer = layer_of()
    with torch.no_grad():
        # Inputs of the layer are positive.
        layer.gate_weights.weight[0] = -20
    return build_model(nn.ReLU(), layer)


def frozen_experts() -> nn.Module:
    layer = layer_of()
    layer.experts.requires_grad_(False)
    return build_model(layer)


MODELS: dict[str, Callable[[], nn.Module]] = {
    "experts that do not divide": lambda: build_model(layer_of(3), layer_of(5)),
    "layer used twice": layer_used_twice,
    "idle expert": idle_expert,
    "frozen experts": frozen_experts,
    "compiled": lambda: torch.compile(build_model(layer_of()), backend="eager"),
    "bf16": lambda: build_model(layer_of()).bfloat16(),
    "autocast": lambda: build_model(layer_of()),
}
WRONG: dict[str, Callable[[], nn.Module]] = {
    "threshold": lambda: build_model(layer_of(threshold=1.5)),
    "compiled whole": lambda: torch.compile(build_model(layer_of()), backend="eager", fullgraph=True),
    "not a number": lambda: build_model(layer_of()),
    "reentrant": lambda: build_model(layer_of()),
}


class Unusual(TrainingFunction):
    """Trains the model of a case."""

    def init_model(self) -> nn.Module:
        self.case = str(self.hyperparameters["case"])
        return {**MODELS, **WRONG}[self.case]()

    def init_dataset(self) -> TensorDataset:
        points = torch.randn(64, 5, 4, generator=torch.Generator().manual_seed(1))
        return TensorDataset(points, points.sin().sum(2, keepdim=True))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(
            [parameter for parameter in model.parameters() if parameter.requires_grad], lr=0.05
        )

    def train(self, batch: Any, model: nn.Module) -> Tensor:
        points, targets = batch
        if self.case == "not a number" and current_iteration() == 2:
            points = points * torch.nan
        if self.case == "bf16":
            points, targets = points.bfloat16(), targets.bfloat16()
        if self.case == "reentrant":
            outputs = checkpoint(model, points.requires_grad_(), use_reentrant=True)
        else:
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=self.case == "autocast"):
                outputs = model(points)
        return nn.functional.mse_loss(outputs.to(targets), targets)


def train(case: str) -> list[dict[str, float]]:
    # Otherwise code compiled for another model of the same classes would be reused.
    torch.compiler.reset()
    runner = runner_of(Unusual({"case": case}))
    try:
        return [runner.run(iteration).values for iteration in range(ITERATIONS)]
    finally:
        runner.synchronisation.close()


def message_of(case: str) -> str:
    try:
        train(case)
    except WorkerFailureError as failure:
        return failure.message
    return ""


def run_all() -> tuple[dict[str, list[dict[str, float]]], dict[str, str]]:
    return {case: train(case) for case in MODELS}, {case: message_of(case) for case in WRONG}


@pytest.fixture(scope="module")
def on_ranks() -> list[Any]:
    return run_on_ranks(RANKS, run_all)


@pytest.mark.filterwarnings("ignore:The .grad attribute:UserWarning")
@pytest.mark.parametrize("case", MODELS)
def test_unusual_model_trains_alike_on_two_workers(alone: None, on_ranks: list[Any], case: str) -> None:
    expected = train(case)
    tolerance = 2e-2 if case in ("bf16", "autocast") else 1e-4
    for trained, _ in on_ranks:
        for actual, reference in zip(trained[case], expected, strict=True):
            assert actual == pytest.approx(reference, rel=tolerance, abs=tolerance)


@pytest.mark.parametrize(
    ("case", "sentence"),
    [
        ("threshold", "threshold is 1.5; it must be between 0 and 1"),
        ("compiled whole", "Skip calling `torch.compiler.disable()`d function"),
        ("not a number", "the gate of a MoELayer is not finite for .* Lower the learning rate"),
        ("reentrant", "pass use_reentrant=False"),
    ],
)
def test_wrong_model_is_refused_on_every_worker(
    alone: None, on_ranks: list[Any], case: str, sentence: str
) -> None:
    messages = [message_of(case), *(wrong[case] for _, wrong in on_ranks)]
    for message in messages:
        assert sentence.split(" .* ")[0] in message
        assert sentence.split(" .* ")[-1] in message
