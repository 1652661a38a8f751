"""Tables partitioned by columns train like whole tables, and move with their states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from punctual import TrainingFunction
from punctual.moe import MoELayer, PartitionedEmbedding
from punctual.moe.tables import LocalTableExchange
from tests.communication.hooks.ranks import run_on_ranks
from tests.runtime.in_process import runner_of
from workers.runtime.iterating.evaluation import evaluate
from workers.runtime.iterating.iteration import IterationRunner
from workers.runtime.iterating.training_state import Progress, ShardCapture, homes_of, restore
from workers.runtime.state.loading import ShardInMemory, load_state
from workers.runtime.state.shards import read_shard, write_shard
from workers.runtime.synchronisation.partitioned_tables import GroupTableExchange, owners_of_blocks

RANKS, ROWS, WIDTH, ITERATIONS = 2, 11, 5, 3
LINA = {"kind": "lina", "choices": {}}
#: Worked example V7.
V7_IDS = ([1, 3], [0, 5], [2, 2], [4, 1])


class Words(TrainingFunction):
    """A table and a layer after it."""

    def init_model(self) -> nn.Module:
        if self.hyperparameters.get("whole"):
            return nn.Sequential(nn.Embedding(ROWS, WIDTH, padding_idx=0), nn.Linear(WIDTH, 1))
        if self.hyperparameters.get("mixture"):
            table, layer = PartitionedEmbedding(ROWS, WIDTH), MoELayer(WIDTH, 4, experts=2)
            return nn.Sequential(table, layer, nn.Linear(WIDTH, 1))
        return nn.Sequential(PartitionedEmbedding(ROWS, WIDTH, padding_index=0), nn.Linear(WIDTH, 1))

    def init_dataset(self) -> TensorDataset:
        ids = torch.randint(0, ROWS, (64, 3), generator=torch.Generator().manual_seed(1))
        return TensorDataset(ids, ids.float().mean(1, keepdim=True))

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.1)

    def train(self, batch: Any, model: nn.Module) -> Any:
        ids, targets = batch
        return nn.functional.mse_loss(model(ids).mean(1), targets)

    def evaluate(self, model: nn.Module) -> dict[str, float]:
        ids, targets = self.init_dataset().tensors
        return {"error": nn.functional.mse_loss(model(ids).mean(1), targets).item()}


def trained(
    batch: int, *synchronisers: dict[str, Any], **hyperparameters: Any
) -> tuple[IterationRunner, list[dict[str, float]]]:
    runner = runner_of(Words(hyperparameters), batch=batch, synchronisers=synchronisers)
    return runner, [dict(runner.run(iteration).values) for iteration in range(ITERATIONS)]


def table_of(runner: IterationRunner) -> Any:
    """Return the model's table, or the embedding that replaces it."""
    return runner.parts.module.get_submodule("0")


def whole_table(runner: IterationRunner) -> Tensor:
    """Return the first rank's table. All ranks call this together."""
    with runner.synchronisation.whole():
        table: Tensor = table_of(runner).weight.detach().clone()
        return table


def store(runner: IterationRunner, path: Path) -> None:
    rank, world_size = dist.get_rank(), dist.get_world_size()
    capture = ShardCapture(runner.parts, generation=1, global_batch_size=8, rank=rank, world_size=world_size)
    shard = capture.shard(Progress(ITERATIONS), copy=False, own={})
    write_shard(shard, path / f"{world_size}-{rank}.pt")


def load(path: Path, world_size: int) -> IterationRunner:
    """Resume from a state that `world_size` ranks have stored."""
    ranks, rank = dist.get_world_size(), dist.get_rank()
    shards = {
        number: ShardInMemory(read_shard(path / f"{world_size}-{number}.pt"))
        for number in range(world_size)
        if number % ranks == rank
    }
    runner = runner_of(Words({}), batch=8)
    for parameter in runner.parts.module.parameters():
        parameter.data.zero_()
    readers = [number % ranks for number in range(world_size)]
    experts, homes = runner.parts.expert_states, homes_of(runner.parts)
    state = load_state(shards, readers, rank=rank, homes=homes, experts=experts)
    assert state is not None
    restore(runner.parts, state.content, global_batch_size=8)
    runner.synchronisation.load_state(state.own)
    return runner


def train_on_ranks(path: str) -> tuple[Any, ...]:
    """Train with even and ragged batches, evaluate, store; return what tests compare."""
    runner, values = trained(8)
    _, ragged_values = trained(7)
    scheduled, scheduled_values = trained(8, LINA, mixture=True)
    scheduled.synchronisation.close()
    moved = load(Path(path), 1)
    moved_loss = moved.run(ITERATIONS).values["loss"]
    table = whole_table(runner)
    evaluated = {}
    with runner.synchronisation.whole():
        if dist.get_rank() == 0:
            evaluated = evaluate(runner.parts.function, runner.parts.module, seed=0)
    store(moved, Path(path))
    own = sum(block.untyped_storage().nbytes() for block in table_of(runner).blocks)
    runner.synchronisation.close()
    is_local = isinstance(table_of(runner).exchange, LocalTableExchange)
    return values, ragged_values, scheduled_values, table, evaluated, moved_loss, own, is_local


def assert_same_metrics(metrics: list[dict[str, float]], expected: list[dict[str, float]]) -> None:
    for actual, reference in zip(metrics, expected, strict=True):
        assert actual["loss"] == pytest.approx(reference["loss"], rel=1e-5)


def test_partitioned_tables_train_as_whole_ones(alone: None, tmp_path: Path) -> None:
    replicated, expected = trained(8, whole=True)
    _, expected_of_seven = trained(7, whole=True)
    runner, _ = trained(8)
    store(runner, tmp_path)
    next_loss = runner.run(ITERATIONS).values["loss"]
    first, second = run_on_ranks(RANKS, train_on_ranks, str(tmp_path))
    _, expected_of_mixture = trained(8, mixture=True)
    for values, ragged, scheduled, _, _, moved_loss, _, is_local in (first, second):
        assert_same_metrics(values, expected)
        assert_same_metrics(scheduled, expected_of_mixture)
        assert_same_metrics(ragged, expected_of_seven)
        assert moved_loss == pytest.approx(next_loss, rel=1e-5)
        assert is_local
    torch.testing.assert_close(first[3], table_of(replicated).weight.detach(), rtol=1e-5, atol=1e-6)
    metrics = evaluate(replicated.parts.function, replicated.parts.module, seed=0)
    assert first[4]["error"] == pytest.approx(metrics["error"], rel=1e-5)
    # Three columns of five, and two.
    nothing = 4
    assert first[6] == 3 * ROWS * 4 + 2 * nothing
    assert second[6] == 2 * ROWS * 4 + 3 * nothing
    # Weights, gradients, and two moments of the other worker's columns.
    assert first[0][0]["table_bytes_saved"] == 2 * ROWS * 4 * 4
    assert load(tmp_path, 2).run(ITERATIONS + 1).values["loss"] == pytest.approx(
        runner.run(ITERATIONS + 1).values["loss"], rel=1e-5
    )


def look_up_v7() -> tuple[Tensor, Tensor, Tensor]:
    """Return this rank's rows, the gradient of its columns, and their numbers."""
    table = PartitionedEmbedding(6, 8)
    for place, block in enumerate(table.blocks):
        block.data = (8.0 * torch.arange(6) + place).unsqueeze(1)
    rank = dist.get_rank()
    table.exchange = GroupTableExchange(8, dist.group.WORLD)
    rows = table(torch.tensor(V7_IDS[rank]))
    rows.backward(torch.full_like(rows, rank + 1.0))
    own = [place for place, owner in enumerate(owners_of_blocks(8, 4)) if owner == rank]
    gradient = torch.cat([table.blocks[place].grad for place in own], dim=1)
    others = all(table.blocks[place].grad is None for place in range(8) if place not in own)
    assert others
    return rows.detach(), gradient / 4, torch.tensor(own)


def test_v7_on_four_ranks() -> None:
    table = torch.arange(48.0).view(6, 8)
    for rank, (rows, gradient, own) in enumerate(run_on_ranks(4, look_up_v7)):
        assert torch.equal(rows, table[V7_IDS[rank]])
        assert own.tolist() == [2 * rank, 2 * rank + 1]
        expected = torch.tensor([0.5, 1.25, 1.5, 0.25, 1.0, 0.5])
        assert torch.equal(gradient, expected.unsqueeze(1).expand(6, 2))


def test_first_ranks_have_one_block_more_and_ranks_beyond_none() -> None:
    assert owners_of_blocks(5, 2) == (0, 0, 0, 1, 1)
    assert owners_of_blocks(2, 4) == (0, 1)


@pytest.mark.parametrize("arguments", [(0, 4), (4, 0), (4, 4, 4)])
def test_impossible_tables_are_refused(arguments: tuple[int, ...]) -> None:
    padding = arguments[2] if len(arguments) > 2 else None
    with pytest.raises(ValueError, match="must be"):
        PartitionedEmbedding(*arguments[:2], padding_index=padding)
