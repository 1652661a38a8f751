"""`train()` gets the user's own module, and all gradients are averaged over the ranks however it uses the
module."""

from __future__ import annotations

import copy
from itertools import product
from typing import Any

import numpy as np
import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from communication.cupcake.plan import FusionPlan
from communication.plan import Prediction
from communication.profiles.codec import Device
from communication.profiles.model import ModelProfile
from communication.profiles.placement import PlacementShape
from punctual import TrainingFunction
from tests.communication.hooks.ranks import run_on_ranks
from tests.runtime.in_process import runner_of
from workers.runtime.failures import WorkerFailureError
from workers.runtime.synchronisation.model import input_mover


class Points(TrainingFunction):
    """Fits a function of six numbers."""

    def init_model(self) -> nn.Module:
        return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))

    def init_dataset(self) -> TensorDataset:
        inputs = torch.randn(64, 6, generator=torch.Generator().manual_seed(3))
        return TensorDataset(inputs, inputs.sum(1, keepdim=True).tanh())

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        # Weight decay and momentum treat zeros and missing gradients differently.
        return torch.optim.AdamW(model.parameters(), lr=0.05, weight_decay=0.1)

    def train(self, batch: Any, model: Any) -> Any:
        inputs, targets = batch
        return functional.mse_loss(model(inputs), targets)


class Layers(Points):
    """Uses its model as single-device scripts do."""

    def init_model(self) -> nn.Module:
        self.built = super().init_model()
        return self.built

    def train(self, batch: Any, model: Any) -> Any:
        assert model is self.built
        assert isinstance(model, nn.Sequential)
        assert len(model) == 3
        assert model[2] in list(model)
        assert model.module[0] is model[0]
        assert list(model.state_dict()) == ["0.weight", "0.bias", "2.weight", "2.bias"]
        assert not hasattr(model, "temperature")
        model.temperature = 0.5
        assert self.built.temperature == 0.5
        del model.temperature
        assert copy.deepcopy(model)(batch[0]).shape == (8, 1)
        assert model.eval().training is False
        return super().train(batch, model) + 1e-4 * model[0].weight.abs().sum()


def test_train_gets_the_module_itself(alone: None) -> None:
    runner = runner_of(Layers({}))
    runner.run(0)
    runner.run(1)
    assert not hasattr(runner.parts.module, "module"), "only train() finds it there"


class LastLayer(Points):
    """Steps one layer, although gradients of the others are computed."""

    def init_optimizer(self, model: Any) -> torch.optim.Optimizer:
        return torch.optim.SGD(model[2].parameters(), lr=0.05)


def test_a_part_of_the_model_may_be_stepped(alone: None) -> None:
    runner = runner_of(LastLayer({}))
    first = runner.parts.module.get_parameter("0.weight").clone()
    for iteration in range(3):
        runner.run(iteration)
    assert torch.equal(runner.parts.module.get_parameter("0.weight"), first)


class OwnModule(Points):
    """A model with an attribute named `module`."""

    def init_model(self) -> nn.Module:
        model = nn.Module()
        model.module = super().init_model()
        return model

    def train(self, batch: Any, model: Any) -> Any:
        return super().train(batch, model.module)


def test_a_models_own_attribute_module_stays(alone: None) -> None:
    runner = runner_of(OwnModule({}))
    runner.run(0)
    assert isinstance(runner.parts.module.module, nn.Sequential)


def test_inputs_of_the_model_are_moved_to_its_gpu() -> None:
    move = input_mover(torch.device("meta"))
    (inputs, (mask,)), keywords = move(nn.Identity(), (torch.ones(1), [torch.ones(1)]), {"t": torch.ones(1)})
    assert inputs.is_meta
    assert mask.is_meta
    assert keywords["t"].is_meta
    assert move(nn.Identity(), (), {}) == ((), {})


class Elsewhere(Points):
    """Trains a module other than the model that the runtime wraps."""

    def train(self, batch: Any, model: Any) -> Any:
        return super().train(batch, copy.deepcopy(model))


def test_a_loss_without_the_models_parameters_is_refused(alone: None) -> None:
    with pytest.raises(WorkerFailureError, match="none of the model's parameters") as caught:
        runner_of(Elsewhere({})).run(0)
    assert caught.value.reason == "function_error"


# -- models whose gradients come as DDP's forward pass does not expect them


class Experts(nn.Module):
    """Each sample goes to the expert of its number; the last expert never gets any."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 6)
        self.experts = nn.ModuleList(nn.Linear(6, 1) for _ in range(9))

    def forward(self, inputs: Tensor) -> Tensor:
        chosen = (inputs[:, 0] * 1e4).long().remainder(8)
        hidden = self.body(inputs).tanh()
        out = inputs.new_zeros(len(inputs), 1)
        for number, expert in enumerate(self.experts):
            of_expert = (chosen == number).nonzero().squeeze(1)
            if len(of_expert):
                out = out.index_add(0, of_expert, expert(hidden[of_expert]))
        return out


class Mixture(Points):
    """Each iteration leaves some experts without a gradient, on one rank or on all."""

    def init_model(self) -> nn.Module:
        return Experts()


class Heads(nn.Module):
    steps: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.a, self.b, self.c = nn.Linear(8, 1), nn.Linear(8, 1), nn.Linear(8, 1)
        self.register_buffer("mask", torch.tensor([True, False, True, True, True, True]))
        self.register_buffer("steps", torch.zeros((), dtype=torch.int64))
        for kind in (torch.float8_e4m3fn, torch.uint16, torch.complex64, torch.int16):
            self.register_buffer(str(kind)[6:], torch.ones(2, 3).to(kind).t())

    def forward(self, inputs: Tensor, head: str) -> Tensor:
        self.steps = self.steps + 1
        return getattr(self, head)(self.encode(inputs))

    def encode(self, inputs: Tensor) -> Tensor:
        return self.body(inputs * self.mask).tanh()


class TwoHeads(Points):
    """Calls its model twice, and a method of it, and never uses a third head. Its buffers are unusual."""

    def init_model(self) -> nn.Module:
        return Heads()

    def train(self, batch: Any, model: Any) -> Any:
        inputs, targets = batch
        loss = functional.mse_loss(model(inputs, "a"), targets)
        loss = loss + functional.mse_loss(model(inputs, "b"), -targets)
        return loss + model.encode(inputs).square().mean()


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.out = nn.Linear(6, 8), nn.Linear(8, 8), nn.Linear(8, 1)

    def forward(self, inputs: Tensor) -> Tensor:
        hidden = self.first(inputs)
        for reentrant in (True, False, True):
            hidden = checkpoint(lambda x: self.second(x).tanh(), hidden, use_reentrant=reentrant)
        return self.out(hidden)


class Recomputed(Points):
    """Its gradients arrive in pieces."""

    def init_model(self) -> nn.Module:
        return Checkpointed()


KINDS: dict[str, type[Points]] = {"mixture": Mixture, "heads": TwoHeads, "recomputed": Recomputed}
WAYS = ("dense", "fused")
#: Two samples on each rank, and a rank without samples.
BATCHES = (4, 1)
ITERATIONS = 6


def fused(model: nn.Module) -> dict[str, Any]:
    """Return a plan that sends all gradients in two groups."""
    sizes = {name: parameter.numel() for name, parameter in reversed(list(model.named_parameters()))}
    profile = ModelProfile("model", tuple(sizes), np.array([*sizes.values()]), np.ones(len(sizes)))
    plan = FusionPlan(
        "none", Device.GPU, True, (2, len(sizes)), profile.layout, PlacementShape(1, 2),
        Prediction(1.0, 0.0, 0.0), 0,
    )  # fmt: skip
    return {
        "kind": "compressed",
        "choices": {"plan": plan.to_message(), "gradients": list(sizes), "momentum": 0},
    }


def trained() -> dict[tuple[str, str, int], dict[str, Tensor]]:
    """Return the states of all kinds of models after some iterations, under DDP's averages and under a
    plan's."""
    assert dist.get_world_size() == 2
    states = {}
    for (name, kind), way, batch in product(KINDS.items(), WAYS, BATCHES):
        function = kind({})
        plan = [fused(function.init_model())] if way == "fused" else []
        runner = runner_of(function, batch=batch, synchronisers=plan)
        for iteration in range(ITERATIONS):
            runner.run(iteration)
        states[name, way, batch] = runner.parts.module.state_dict()
    return states


def plainly_trained(kind: type[Points], batch: int) -> dict[str, Tensor]:
    """Return the same without the runtime's synchronisation: PyTorch on one device."""
    function = kind({})
    runner = runner_of(function, batch=batch)
    parts = runner.parts
    for iteration in range(ITERATIONS):
        function.train(runner.loader.load(iteration).content, parts.module).backward()
        parts.optimizer.step()
        parts.optimizer.zero_grad()
    return parts.module.state_dict()


def test_all_ways_of_gradients_train_as_on_one_device(alone: None) -> None:
    ranks = run_on_ranks(2, trained)
    for (name, kind), batch in product(KINDS.items(), BATCHES):
        plain = plainly_trained(kind, batch)
        for states, way in product(ranks, WAYS):
            state = states[name, way, batch]
            assert state.keys() == plain.keys()
            for key, value in plain.items():
                if value.dtype is torch.float32:
                    torch.testing.assert_close(
                        state[key], value, rtol=1e-4, atol=1e-5, msg=f"{name} {way} {key}"
                    )
                else:
                    assert state[key].tolist() == value.tolist(), key
