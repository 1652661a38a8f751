"""Sizes of a model with experts, as a measurement reports them before its first level."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn
from torch.optim import SGD, Adam, AdamW, Optimizer

from punctual.moe import MoELayer
from punctual.protocol.events import FROM_WORKERS
from tests.runtime.conftest import EXAMPLES, regression
from tests.runtime.training_in_process import Changing
from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.function.parts import TrainingParts
from workers.runtime.measuring.mixture_sizes import mixture_fields, optimizer_share
from workers.runtime.try_function import find_entry

#: Of a layer of width 8 with experts of 16: each has two matrices of 8 by 16, in single precision.
EXPERT_BYTES, GATE_BYTES, HEAD_BYTES = 2 * 8 * 16 * 4, 8 * 6 * 4, 8 * 4


class Model(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = MoELayer(8, 16, 6)
        self.same = self.layer
        self.head = nn.Linear(8, 1, bias=False)


def parts(model: nn.Module, optimizer: Optimizer) -> TrainingParts:
    return TrainingParts(Changing({}, lambda *_: None), model, optimizer, None, torch.device("cpu"))


def _layer(state_bytes: int, *, is_tiered: bool = False) -> dict[str, Any]:
    return {
        "experts": 6, "state_bytes": state_bytes, "weight_bytes": EXPERT_BYTES, "is_tiered": is_tiered
    }  # fmt: skip


def test_a_dense_model_reports_nothing() -> None:
    model = nn.Linear(8, 8)
    assert mixture_fields(parts(model, Adam(model.parameters()))) is None


def test_states_are_weights_gradients_and_optimizer_state() -> None:
    model = Model()
    fields = mixture_fields(parts(model, Adam(model.parameters())))
    assert fields == {
        "parameter_bytes": 6 * EXPERT_BYTES + GATE_BYTES + HEAD_BYTES,
        "dense_state_bytes": 4 * (GATE_BYTES + HEAD_BYTES),
        "layers": [_layer(4 * EXPERT_BYTES)],
        "on_host": True,
    }
    FROM_WORKERS["mixture"].model_validate(fields)


def test_layers_with_tiers_are_reported() -> None:
    model = Model()
    model.layer.tiers = "auto"
    fields = mixture_fields(parts(model, Adam(model.parameters())))
    assert fields is not None
    assert fields["layers"] == [_layer(4 * EXPERT_BYTES, is_tiered=True)]
    assert fields["dense_state_bytes"] == 4 * (GATE_BYTES + HEAD_BYTES)


def test_experts_that_are_not_trained_are_whole_everywhere() -> None:
    model = Model()
    frozen = MoELayer(8, 16, 2).requires_grad_(False)
    model.frozen = frozen
    fields = mixture_fields(parts(model, SGD(model.parameters(), lr=0.1)))
    assert fields is not None
    assert fields["layers"] == [_layer(2 * EXPERT_BYTES)]
    whole = sum(parameter.numel() * 4 for parameter in frozen.parameters())
    assert fields["dense_state_bytes"] == 2 * (GATE_BYTES + HEAD_BYTES) + whole


@pytest.mark.parametrize(
    ("made", "share"),
    [
        (Adam, 2.0),
        (AdamW, 2.0),
        (lambda parameters: Adam(parameters, amsgrad=True), 3.0),
        (lambda parameters: SGD(parameters, lr=0.1), 0.0),
        (lambda parameters: SGD(parameters, lr=0.1, momentum=0.9), 1.0),
    ],
)
def test_optimizer_state_is_a_multiple_of_the_parameters(
    made: Callable[[list[nn.Parameter]], Optimizer], share: float
) -> None:
    assert optimizer_share(made([nn.Parameter(torch.zeros(2))])) == share


class OwnOptimizer(Optimizer):
    """An optimizer that cannot be built like those of PyTorch."""

    def __init__(self, parameters: list[nn.Parameter], model: nn.Module) -> None:
        super().__init__(parameters, {"model": None, "lr": 1.0})
        self.model = model.weight

    def step(self, closure: object = None) -> None:
        pass


def test_an_unknown_form_of_optimizer_counts_as_stateless() -> None:
    model = nn.Linear(2, 2)
    assert optimizer_share(OwnOptimizer(list(model.parameters()), model)) == 0.0


def test_a_measurement_tells_sizes_before_its_first_level(agent: LocalAgent) -> None:
    source = EXAMPLES / "moe_language_model.py"
    small = {"width": 16, "hidden": 16, "layers": 1, "experts": 6, "passages": 64}
    assignment = regression(
        function={"entry": find_entry(source)},
        hyperparameters=small,
        batch=8,
        purpose="profiling",
        profile={"levels": [1], "seconds_per_level": 0.1, "max_seconds": 300},
    )
    generation = agent.start_generation(source, assignment, 1)
    generation.leader.wait_for_event("profile_done")
    events = generation.leader.of_kind("event")
    assert [event["kind"] for event in events][0] == "mixture"
    assert [layer["experts"] for layer in events[0]["layers"]] == [6]
