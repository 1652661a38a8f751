"""Fusion plans in real workers: training equals all-reduces, also over emulated links and rescales."""

from __future__ import annotations

import io
from typing import Any, cast

import numpy as np
import pytest
import torch
from torch import nn

from communication.cupcake.plan import FusionPlan
from communication.plan import Prediction
from communication.profiles.codec import Device
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from punctual import TrainingFunction
from tests.runtime.conftest import REGRESSION, emulated, regression
from workers.runtime.at_home.local_agent import LocalAgent, runtime_plan
from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.parts import TrainingParts
from workers.runtime.synchronisation.compressed import CompressedSynchroniser

#: The parameters of the regression's model in order of readiness.
ELEMENTS = {"3.bias": 1, "3.weight": 24, "1.bias": 24, "1.weight": 24, "0.bias": 24, "0.weight": 192}


def compressed(
    shape: PlacementShape, codec: str, boundaries: tuple[int, ...] = (2, 6), **changes: Any
) -> Any:
    """Return the runtime plan that carries out a fusion plan."""
    model = ModelProfile("model", tuple(ELEMENTS), np.array([*ELEMENTS.values()]), np.ones(len(ELEMENTS)))
    prediction = Prediction(1.0, 0.0, 0.0)
    plan = FusionPlan(
        codec, Device.GPU, codec == "none", boundaries, model.layout, shape, prediction, 0
    ).to_message()
    choices = {"plan": plan, "gradients": list(ELEMENTS), "momentum": 0, **changes}
    return runtime_plan(
        {"kind": "compressed", "choices": choices}, family="dense" if codec == "none" else "lossy"
    )


@pytest.mark.parametrize("device", ["cpu", pytest.param("emulated", marks=pytest.mark.live)])
def test_a_lossless_plan_trains_as_all_reduces_do(agent: LocalAgent, device: str) -> None:
    shape = PlacementShape(2, 2) if device == "emulated" else PlacementShape(1, 2)
    changes: dict[str, Any] = {}
    if device == "emulated":
        changes = {"device": emulated(), "places": {"servers": [0, 0, 1, 1], "racks": [0, 0, 0, 0]}}
    finals = []
    for plan in (runtime_plan(), compressed(shape, "none")):
        assignment = regression(iterations=20, runtime_plan=plan, **changes)
        generation = agent.start_generation(REGRESSION, assignment, shape.workers).wait_until_ready()
        finals.append(generation.train_from_nothing().report()["final"])
    dense, fused = finals
    assert dense.keys() == fused.keys()
    for name, value in dense.items():
        assert fused[name] == pytest.approx(value, rel=1e-4), name


def test_a_plan_names_no_gradients_without_elements() -> None:
    names = ["weight", "bias"]
    synchroniser = CompressedSynchroniser({"plan": {}, "gradients": names, "momentum": 0})
    module = nn.Linear(2, 2)
    module.register_parameter("empty", nn.Parameter(torch.zeros(0)))
    optimizer = torch.optim.SGD(module.parameters(), lr=0.1)
    function = cast("TrainingFunction", None)
    parts = TrainingParts(function, module, optimizer, None, torch.device("cpu"))
    assert list(synchroniser.takes(parts, dict(module.named_parameters()))) == [*names, "empty"]
    with pytest.raises(WorkerFailureError, match="bias is on one side alone"):
        synchroniser.takes(parts, {"weight": module.weight})


def test_residuals_are_part_of_the_state(agent: LocalAgent) -> None:
    """Handed over from two ranks to three on one server, under a plan of their own."""
    before = compressed(PlacementShape(1, 2), "onebit")
    assignment = regression(iterations=10**6, runtime_plan=before)
    old = agent.start_generation(REGRESSION, assignment, 2).wait_until_ready().train_from_nothing()
    old.wait_for_iteration(5)
    after = compressed(PlacementShape(1, 3), "onebit", (6,))
    new = agent.start_generation(REGRESSION, {**assignment, "generation": 2, "runtime_plan": after}, 3)
    new.wait_until_ready().train_from(old)
    new.leader.wait_for_event("first_iteration")
    new.goal("suspend")
    for content in new.checkpoint_files().shards:
        shard = torch.load(io.BytesIO(content), weights_only=True)
        residuals = {tuple(entry["path"]): entry["shape"] for entry in shard["own"]}
        assert sum(shape[0] for (_, name), shape in residuals.items() if name.startswith("residual/")) == 289
        assert ("compressed", "origin") in residuals


@pytest.mark.parametrize(
    ("plan", "complaint"),
    [
        (compressed(PlacementShape(1, 2), "none"), "there are 1 ranks; 1 x 2 GPUs need one each"),
        (compressed(PlacementShape(1, 1), "zip"), "no codec 'zip'"),
        (compressed(PlacementShape(1, 1), "none", gradients=["3.bias"]), "0.bias is on one side alone"),
        (
            compressed(PlacementShape(1, 1), "none", gradients=sorted(ELEMENTS)),
            "their names, sizes or order differ",
        ),
        (compressed(PlacementShape(1, 1), "onebit", momentum=0.9), "momentum masking needs a sparse codec"),
        (compressed(PlacementShape(1, 1), "none", plan={}), "not a message of the planner cupcake"),
        (compressed(PlacementShape(1, 1), "none", gradients=3), "cannot do what was chosen"),
        (
            runtime_plan(*compressed(PlacementShape(1, 1), "onebit")["synchronisers"], family="lossless"),
            "it is to lose nothing",
        ),
    ],
)
def test_an_impossible_plan_is_refused_with_the_reason(agent: LocalAgent, plan: Any, complaint: str) -> None:
    generation = agent.start_generation(REGRESSION, regression(runtime_plan=plan), 1)
    event = generation.leader.wait_for_event("failed")
    assert event["reason"] == "plan_refused"
    assert complaint in event["message"]
