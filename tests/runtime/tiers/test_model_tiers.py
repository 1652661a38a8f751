"""Layers with tiers train like others, on any number of workers."""

from __future__ import annotations

from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn import functional
from torch.utils.data import TensorDataset

from punctual import TrainingFunction
from punctual.moe import MoELayer, TopK, expert_parameters, moe_layers
from tests.communication.hooks.ranks import run_on_ranks
from tests.runtime.in_process import CPU, runner_of
from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.parts import build_parts
from workers.runtime.iterating.evaluation import evaluate
from workers.runtime.iterating.iteration import IterationRunner
from workers.runtime.iterating.training_state import Progress, ShardCapture, final_weights
from workers.runtime.profiling import take_over
from workers.runtime.synchronisation.model_tiers import ModelTiers
from workers.runtime.tiers.disk_share import DiskShare
from workers.runtime.tiers.usage import TierUsage

WIDTH, ITERATIONS = 6, 4


class Mixture(TrainingFunction):
    """Two layers of experts. Hyperparameters select whether their states are in tiers."""

    def init_model(self) -> nn.Module:
        tiers = self.hyperparameters.get("tiers")
        layers = [MoELayer(WIDTH, hidden, 3, TopK(2), capacity_factor=0.8, tiers=tiers) for hidden in (8, 10)]
        return nn.Sequential(nn.Linear(4, WIDTH), *layers, nn.Linear(WIDTH, 1))

    def init_dataset(self) -> TensorDataset:
        points = torch.randn(64, 4, generator=torch.Generator().manual_seed(1))
        return TensorDataset(points, points.sin().sum(1, keepdim=True))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.AdamW(model.parameters(), lr=0.05)

    def train(self, batch: Any, model: nn.Module) -> Any:
        return functional.mse_loss(model(batch[0]), batch[1])

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        points, values = self.init_dataset().tensors
        return {"error": functional.mse_loss(model(points), values).item()}


def trained(tiers: str | None) -> tuple[IterationRunner, list[float], dict[str, Tensor], dict[str, float]]:
    """Return losses, and on the first rank final weights and an evaluation."""
    function = Mixture({"tiers": tiers})
    runner = runner_of(function, clip_norm=0.5)
    losses = [runner.run(iteration).values["loss"] for iteration in range(ITERATIONS)]
    with runner.synchronisation.whole():
        is_first = runner.parts.experts.rank == 0
        weights = final_weights(runner.parts) if is_first else {}
        measured = evaluate(function, runner.parts.module, 0) if is_first else {}
    return runner, losses, weights, measured


def train_both_ways() -> None:
    plain, losses, weights, measured = trained(None)
    tiered, tiered_losses, tiered_weights, tiered_measured = trained("auto")
    hosted = [name for name in plain.parts.experts.hosts if plain.parts.experts.is_here(name)]
    assert hosted
    parameters = tiered.parts.module.get_parameter
    assert {parameters(name).untyped_storage().nbytes() for name in hosted} == {4}
    assert tiered_losses == losses
    assert tiered_measured == measured
    assert weights.keys() == tiered_weights.keys()
    assert all(torch.equal(tiered_weights[name], value) for name, value in weights.items())
    values = tiered.run(ITERATIONS).values
    # Host memory has room for the only layer of each shape. Final weights were read from files.
    assert (values["moe/tier_hits"], values["moe/tier_bytes_read"]) == (1, 0)
    assert values["moe/tier_bytes_written"] > 0
    assert values["moe/tier_stall_seconds"] > 0
    assert tiered.parts.tier_usage().bytes_written == tiered.parts.disk.written_bytes > 0
    assert not any(name.startswith("moe/tier") for name in plain.run(ITERATIONS).values)
    tiered.synchronisation.close()
    assert tiered.parts.tier_usage() == TierUsage()
    for name in hosted:
        assert torch.equal(parameters(name), plain.parts.module.get_parameter(name))


@pytest.mark.parametrize("ranks", [1, 2])
def test_layers_with_tiers_train_alike(ranks: int) -> None:
    run_on_ranks(ranks, train_both_ways)


def take_over_while_training() -> None:
    """The pause of a level is measured this way."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    losses = []
    for is_taken_over in (False, True):
        runner = runner_of(Mixture({"tiers": "auto"}))
        own = [runner.run(0).values["loss"]]
        if is_taken_over:
            capture = ShardCapture(
                runner.parts, generation=0, global_batch_size=8, rank=rank, world_size=ranks
            )
            shard = capture.shard(Progress(), copy=False, own={})
            take_over(runner, shard, None, rank, ranks, 8)
        losses.append([*own, runner.run(1).values["loss"]])
        runner.synchronisation.close()
    assert losses[0] == losses[1]


@pytest.mark.parametrize("ranks", [1, 2])
def test_tiers_are_left_while_a_state_is_taken_over(ranks: int) -> None:
    run_on_ranks(ranks, take_over_while_training)


def test_experts_in_double_precision_are_refused() -> None:
    parts = build_parts(Mixture({"tiers": "auto"}), CPU, 0)
    parts.module.double()
    with pytest.raises(WorkerFailureError, match='tiers="auto": experts with tiers must all have FP32'):
        ModelTiers(parts, moe_layers(parts.module), expert_parameters(parts.module))


def test_states_beyond_the_share_of_disk_are_refused() -> None:
    parts = build_parts(Mixture({"tiers": "auto"}), CPU, 0)
    parts.disk = DiskShare(1000)
    with pytest.raises(WorkerFailureError, match="the worker may take 1000") as failed:
        ModelTiers(parts, moe_layers(parts.module), expert_parameters(parts.module))
    assert failed.value.reason == "storage_failed"


def test_usage_that_was_counted_anew_is_not_negative() -> None:
    assert TierUsage(accesses=3.0).since(TierUsage(accesses=5.0)) == TierUsage(accesses=3.0)
    assert TierUsage(5.0, 4.0).since(TierUsage(3.0, 3.0)) == TierUsage(2.0, 1.0)


def test_a_layer_names_the_wrong_tiers() -> None:
    with pytest.raises(ValueError, match="tiers is 'disk'"):
        MoELayer(4, 4, 2, tiers="disk")  # type: ignore[arg-type]
