"""A rank's device never holds the experts of other ranks."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.utils.data import TensorDataset

from punctual import TrainingFunction
from punctual.moe import MoELayer
from punctual.randomness import derive_seed, seed_generators
from tests.communication.hooks.ranks import run_on_ranks
from tests.runtime.in_process import CPU
from workers.runtime.at_home.local_agent import runtime_plan
from workers.runtime.experts.host_experts import take_to_device
from workers.runtime.function.parts import build_parts
from workers.runtime.runtime_plan import RuntimePlan
from workers.runtime.synchronisation.together import Synchronisation

RANKS, WIDTH, EXPERTS = 2, 8, 5


class Noting(nn.Sequential):
    """A model that records the bytes that it moves to its device."""

    moved = 0

    def to(self, *arguments: Any, **keywords: Any) -> Any:
        self.moved += bytes_of(self.parameters())
        return super().to(*arguments, **keywords)


class Mixture(TrainingFunction):
    def init_model(self) -> nn.Module:
        return Noting(nn.Linear(3, WIDTH), MoELayer(WIDTH, 4, EXPERTS), nn.Linear(WIDTH, 1))

    def init_dataset(self) -> TensorDataset:
        return TensorDataset(torch.zeros(4, 2, 3))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters())

    def train(self, batch: Any, model: nn.Module) -> Any:
        return model(batch[0]).mean()


class Averaged(Mixture):
    """An average of the model would read experts of other ranks."""

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        self.average = torch.optim.swa_utils.AveragedModel(model)
        return super().init_optimizer(model)


def bytes_of(parameters: Iterable[nn.Parameter]) -> int:
    return sum(parameter.nbytes for parameter in parameters)


def bytes_on_device(function: TrainingFunction) -> tuple[int, int, int, bool]:
    """Return the bytes moved to the device with the model, and of experts later; those of all experts; and
    whether the optimizer has states by then."""
    parts = build_parts(function, CPU, 0)
    later = 0
    has_states = False

    def note(experts: Iterable[nn.Parameter], optimizer: torch.optim.Optimizer, device: torch.device) -> None:
        nonlocal later, has_states
        experts = list(experts)
        later += bytes_of(experts)
        has_states = has_states or bool(optimizer.state)
        take_to_device(experts, optimizer, device)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("workers.runtime.synchronisation.expert_parallel.take_to_device", note)
        synchronisation = Synchronisation(RuntimePlan.from_message(runtime_plan()), parts)
    assert isinstance(parts.module, Noting)
    everything = bytes_of(parts.module[1].experts.parameters())
    # Closing the groups while another rank still opens them would break its connections.
    dist.barrier()
    synchronisation.close()
    return parts.module.moved, later, everything, has_states


def both() -> list[tuple[int, int, int, bool]]:
    return [bytes_on_device(Mixture({})), bytes_on_device(Averaged({}))]


def test_a_device_gets_the_experts_of_its_rank_alone() -> None:
    model = Mixture({}).init_model()
    rest = bytes_of(model.parameters()) - bytes_of(model[1].experts.parameters())
    for (moved, own, everything, has_states), averaged in run_on_ranks(RANKS, both):
        assert moved == rest
        assert own in (2 * everything // EXPERTS, 3 * everything // EXPERTS)
        assert not has_states
        # A part that cannot be spread is whole on every rank.
        assert averaged[1] == averaged[2]


def test_initial_weights_equal_those_of_a_model_moved_whole() -> None:
    built = build_parts(Mixture({}), CPU, 0).module.state_dict()
    seed_generators(derive_seed(0, "initial model"))
    expected = Mixture({}).init_model().state_dict()
    assert built.keys() == expected.keys()
    assert all(torch.equal(value, expected[name]) for name, value in built.items())
