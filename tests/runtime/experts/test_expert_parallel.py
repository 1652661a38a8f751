"""Mixture-of-experts layers train alike on any number of workers."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.optim.swa_utils import AveragedModel
from torch.utils.checkpoint import checkpoint
from torch.utils.data import TensorDataset

from emulated_links.rates import EXPERTS, GRADIENTS, NETWORK, STATE, ServerLinks
from punctual import TrainingFunction
from punctual.moe import Adaptive, ExpertPlacement, Gate, MoELayer, TopK, balance_loss, routing_counts
from tests.communication.hooks.ranks import run_on_ranks
from tests.runtime.conftest import emulated
from tests.runtime.in_process import runner_of
from workers.runtime.emulation.emulated_network import BACKEND, Emulation, register
from workers.runtime.emulation.places import Places
from workers.runtime.experts.expert_exchanges import RuntimeExchange
from workers.runtime.failures import WorkerFailureError
from workers.runtime.iterating.evaluation import evaluate
from workers.runtime.iterating.iteration import IterationRunner
from workers.runtime.iterating.training_state import Progress, ShardCapture, homes_of, restore, state_bytes
from workers.runtime.state.loading import OpenShard, ShardInMemory, load_state
from workers.runtime.state.shards import read_shard, write_shard

RANKS, WIDTH, ITERATIONS = 2, 6, 4
GATES: Mapping[str, Gate] = {"top2": TopK(2), "adaptive": Adaptive(0.2)}


class Averaged(nn.Module):
    """A model with an average of its weights."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model, self.average = model, copy.deepcopy(model).requires_grad_(False)

    def forward(self, points: Tensor) -> Tensor:
        outputs: Tensor = self.model(points)
        if self.training:
            for average, parameter in zip(self.average.parameters(), self.model.parameters(), strict=True):
                average.data.lerp_(parameter.data, 0.5)
        return outputs


class Mixture(TrainingFunction):
    """A layer that drops rows, between two linear layers. Hyperparameters change it."""

    def init_model(self) -> nn.Module:
        gate = GATES[self.hyperparameters.get("gate", "top2")]
        layer = MoELayer(WIDTH, 8, experts=3, gate=gate, capacity_factor=0.8, balance_weight=0.5)
        if self.hyperparameters.get("frozen"):
            layer.experts.requires_grad_(False)
        model = nn.Sequential(nn.Linear(4, WIDTH), layer, nn.Linear(WIDTH, 1))
        return Averaged(model) if self.hyperparameters.get("averages") == "in the model" else model

    def state_dict(self) -> dict[str, Any]:
        return self.average.state_dict() if hasattr(self, "average") else {}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        if hasattr(self, "average"):
            self.average.load_state_dict(state)

    def init_dataset(self) -> TensorDataset:
        points = torch.randn(64, 5, 4, generator=torch.Generator().manual_seed(1))
        return TensorDataset(points, points.sin().sum(2, keepdim=True))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        if self.hyperparameters.get("averages") == "beside it":
            self.average = AveragedModel(model)
        return torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)

    def train(self, batch: Any, model: nn.Module) -> Any:
        points, targets = batch
        if hasattr(self, "average"):
            self.average.update_parameters(model)
        if self.hyperparameters.get("broken"):
            points = points * torch.nan if dist.get_rank() == 1 else points
        if self.hyperparameters.get("checkpointed"):
            outputs = checkpoint(model, points, use_reentrant=False)
        else:
            outputs = model(points)
        loss = nn.functional.mse_loss(outputs, targets)
        if self.hyperparameters.get("penalty"):
            loss = loss + sum(parameter.square().sum() for parameter in model.parameters())
        return loss + balance_loss(model) if self.hyperparameters.get("adds_balance") else loss

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        routing_counts(model)
        model(self.init_dataset().tensors[0])
        (counts,) = routing_counts(model).values()
        return {"tokens": counts.tokens}


class Trained:
    """The results of a rank after some iterations."""

    def __init__(self, batch: int, hyperparameters: Mapping[str, Any]) -> None:
        self.runner = runner_of(Mixture(hyperparameters), batch=batch)
        self.values = [self.runner.run(iteration).values for iteration in range(ITERATIONS)]

    def told(self) -> tuple[list[dict[str, float]], list[Tensor]]:
        """Return the metrics of each iteration, and the first rank's whole model. All ranks call this."""
        with self.runner.synchronisation.whole():
            parameters = dict(self.runner.parts.module.named_parameters())
            average = getattr(self.runner.parts.function, "average", None)
            parameters |= {} if average is None else dict(average.named_parameters())
            return self.values, [parameter.detach().clone() for parameter in parameters.values()]


#: Batch size and hyperparameters. Two workers have unequal parts of 7 samples, and one of them none of 1.
CASES: Mapping[str, tuple[int, Mapping[str, Any]]] = {
    "even": (8, {}),
    "uneven": (7, {"gate": "adaptive"}),
    "one sample": (1, {}),
    "average in the model": (8, {"averages": "in the model"}),
    "average beside it": (8, {"averages": "beside it"}),
    "frozen": (8, {"frozen": True}),
    "checkpointed": (8, {"checkpointed": True}),
}


def exchange_over_emulated_links(box: str) -> tuple[list[list[int]], dict[str, float]]:
    """Return gathered counts, and the bytes by class of these and of 600 rows over the network."""
    links = ServerLinks.from_message(emulated()["links"])
    emulation = Emulation(links, Places((0, 1), (0, 0)), Path(box))
    register(emulation)
    group = dist.new_group(backend=BACKEND, group_desc=EXPERTS)
    exchange = RuntimeExchange(ExpertPlacement(((0,), (1,)), RANKS), group)
    counts = exchange.gather(torch.tensor([300 + exchange.rank, 300 - exchange.rank]))
    rows = torch.randn(600, 8)
    emulation.clock.begin(patience_seconds=100.0)
    began = emulation.clock.at
    assert torch.equal(exchange.exchange(rows, counts, lambda _expert, sent: 2 * sent), 2 * rows)
    # The next computation begins when the rows have come back.
    assert emulation.clock.at > began
    return counts.tolist(), emulation.client.carried()[NETWORK]


def store(runner: IterationRunner, path: Path) -> int:
    """Write this rank's shard of the state; return its bytes of experts."""
    rank, world_size = dist.get_rank(), dist.get_world_size()
    capture = ShardCapture(runner.parts, generation=1, global_batch_size=8, rank=rank, world_size=world_size)
    shard = capture.shard(Progress(ITERATIONS), copy=False, own={})
    write_shard(shard, path / f"{world_size}-{rank}.pt")
    return sum(
        math.prod(entry["shape"]) * 4 for entry in shard.description["experts"] if entry["path"][0] == "model"
    )


def load(path: Path, world_size: int) -> IterationRunner:
    """Resume from a state that `world_size` ranks have stored."""
    ranks = dist.get_world_size()
    shards = {
        number: ShardInMemory(read_shard(path / f"{world_size}-{number}.pt"))
        for number in range(world_size)
        if number % ranks == dist.get_rank()
    }
    return go_on_from(shards, [number % ranks for number in range(world_size)])


def go_on_from(shards: Mapping[int, OpenShard], readers: Sequence[int]) -> IterationRunner:
    """Load a state whose shards these ranks read."""
    runner = runner_of(Mixture({}), batch=8)
    for parameter in runner.parts.module.parameters():
        parameter.data.zero_()
    experts = runner.parts.expert_states
    homes = homes_of(runner.parts)
    state = load_state(shards, readers, rank=dist.get_rank(), homes=homes, experts=experts)
    assert state is not None
    restore(runner.parts, state.content, global_batch_size=8)
    runner.synchronisation.load_state(state.own)
    return runner


def move_experts(path: str) -> tuple[float, int, int]:
    """Resume from one worker's state; store that of two. Return a loss, and this rank's bytes of experts."""
    runner = load(Path(path), 1)
    loss = runner.run(ITERATIONS).values["loss"]
    return loss, store(runner, Path(path)), state_bytes(runner.parts)


def penalise_weights() -> str:
    """Return how a penalty on weights of experts is refused."""
    with pytest.raises(WorkerFailureError) as caught:
        Trained(8, {"penalty": True})
    return caught.value.message


def train_all(box: str) -> tuple[Any, ...]:
    """Train every case, evaluate and rehearse on rank 0 alone, break the gate of rank 1."""
    results = {name: Trained(*case) for name, case in CASES.items()}
    evaluated = {}
    last = results["even"].runner
    with last.synchronisation.whole():
        if dist.get_rank() == 0:
            evaluated = evaluate(last.parts.function, last.parts.module, seed=0)
    results["even"].values.append(last.run(ITERATIONS).values)
    outcomes = {name: result.told() for name, result in results.items()}
    if dist.get_rank() == 0:
        last.rehearse(ITERATIONS)
    for result in results.values():
        result.runner.synchronisation.close()
    with pytest.raises(WorkerFailureError) as caught:
        Trained(8, {"broken": True})
    return outcomes, evaluated, caught.value.message, exchange_over_emulated_links(box)


def test_mixtures_train_as_on_one_worker(alone: None, tmp_path: Path) -> None:
    expected = {name: Trained(*case) for name, case in CASES.items()}
    even = expected["even"]
    evaluated = evaluate(even.runner.parts.function, even.runner.parts.module, seed=0)
    even.values.append(even.runner.run(ITERATIONS).values)
    for rank, rank_result in enumerate(run_on_ranks(RANKS, train_all, str(tmp_path))):
        outcomes, own_evaluated, message, (counts, carried) = rank_result
        for name, (values, parameters) in outcomes.items():
            expected_values, expected_parameters = expected[name].told()
            for actual, reference in zip(values, expected_values, strict=True):
                assert actual == pytest.approx(reference, rel=1e-4), name
            for actual, reference in zip(parameters, expected_parameters, strict=True) if rank == 0 else ():
                assert torch.allclose(actual, reference, atol=1e-5), name
        assert own_evaluated == ({} if rank else evaluated)
        assert "the gate of a MoELayer is not finite for 20 of 40 tokens" in message
        assert counts == [[300, 300], [301, 299]]
        # Rows go there and back with 32 bytes each; counts do not use the links.
        assert carried == pytest.approx({EXPERTS: 32 * (300 + 301), GRADIENTS: 0, STATE: 0}, abs=0.01)


def test_experts_and_their_momentum_move_to_other_numbers_of_workers(alone: None, tmp_path: Path) -> None:
    runner = Trained(8, {}).runner
    total = store(runner, tmp_path)
    assert total == 3 * 2 * 6 * 8 * 4
    expected = runner.run(ITERATIONS).values["loss"], runner.run(ITERATIONS + 1).values["loss"]
    (first, bytes_of_two_experts, bytes_of_first), (second, bytes_of_one_expert, bytes_of_second) = (
        run_on_ranks(RANKS, move_experts, str(tmp_path))
    )
    assert first == second == pytest.approx(expected[0], rel=1e-5)
    # Parameters and momentum of one expert.
    assert bytes_of_first - bytes_of_second == 2 * total / 3
    assert (bytes_of_two_experts, bytes_of_one_expert) == (2 * total / 3, total / 3)
    assert load(tmp_path, 2).run(ITERATIONS + 1).values["loss"] == pytest.approx(expected[1], rel=1e-5)


def test_a_penalty_on_weights_of_experts_is_refused(alone: None) -> None:
    for message in run_on_ranks(RANKS, penalise_weights):
        assert "lies on another worker: leave penalties on the weights of experts and" in message


def test_a_balance_loss_left_out_by_the_function_is_added(alone: None) -> None:
    added, left = Trained(8, {"adds_balance": True}), Trained(8, {})
    for parameter, reference in zip(added.told()[1], left.told()[1], strict=True):
        assert torch.equal(parameter, reference)
    # The loss is what the function returned.
    balance = added.values[0]["moe/balance_loss"]
    assert balance >= 1
    assert added.values[0]["loss"] - left.values[0]["loss"] == pytest.approx(0.5 * balance, rel=1e-5)


def test_metrics_report_expert_loads_and_dropped_tokens(alone: None) -> None:
    values = Trained(8, {}).values[0]
    assert values["moe/two_expert_share"] == 1
    # 80 rows for three experts, each of which takes 22 of them.
    assert values["moe/dropped_share"] >= 14 / 80
    assert 1 <= values["moe/largest_load"] <= 1.5


def test_a_functions_own_metric_keeps_its_name(alone: None) -> None:
    class Naming(Mixture):
        def train(self, batch: Any, model: nn.Module) -> Any:
            return super().train(batch, model), {"moe/largest_load": -1.0}

    values = runner_of(Naming({})).run(0).values
    assert values["moe/largest_load"] == -1
    assert "moe/dropped_share" in values
