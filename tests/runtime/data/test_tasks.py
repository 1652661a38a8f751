"""Tasks of unequal loads on any number of workers: the same batches and gradients, and even loads."""

from __future__ import annotations

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import ConcatDataset, Dataset, TensorDataset

from punctual import Task, TrainingFunction
from punctual.moe import MoELayer
from tests.communication.hooks.ranks import run_on_ranks
from tests.runtime.in_process import runner_of
from workers.runtime.data.batches import BatchLoader
from workers.runtime.data.task_order import TaskOrder, build_task_order, split_batch
from workers.runtime.data.task_times import TaskTimes
from workers.runtime.failures import WorkerFailureError
from workers.runtime.function.parts import build_parts, build_sample_order

TASKS = {"a": Task(4), "b": Task(2), "c": Task(1), "d": Task(1)}
SIZES = (40, 7, 9, 11)
BATCH = 16
CPU = torch.device("cpu")


class FourTasks(TrainingFunction):
    """A shared layer, and a head for each task."""

    def tasks(self) -> Mapping[str, Task]:
        return TASKS

    def init_model(self) -> nn.Module:
        heads = nn.ModuleList(nn.Linear(6, 1) for _ in TASKS)
        return nn.ModuleDict({"shared": nn.Linear(3, 6), "heads": heads})

    def init_dataset(self) -> Dataset[Any]:
        generator = torch.Generator().manual_seed(1)
        return ConcatDataset(
            TensorDataset(torch.full((size,), task), torch.randn(size, 3, generator=generator))
            for task, size in enumerate(SIZES)
        )

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.Adam(model.parameters(), lr=0.05)

    def train(self, batch: Any, model: nn.Module) -> Tensor:
        tasks, rows = batch
        hidden = torch.tanh(model["shared"](rows))
        loss = torch.zeros(())
        for task in tasks.unique().tolist():
            own = tasks == task
            wrong = model["heads"][task](hidden[own]).squeeze(1) - rows[own].sum(1)
            loss = loss + wrong.square().sum()
        return loss / len(tasks)


def order_of(batch: int = BATCH, tasks: Mapping[str, Task] = TASKS) -> TaskOrder:
    return TaskOrder(SIZES, tasks, batch, seed=5)


@pytest.mark.parametrize(
    ("batch", "shares", "parts"),
    [
        (16, (4, 2, 1, 1), (8, 4, 2, 2)),
        (10, (4, 2, 1, 1), (5, 3, 1, 1)),
        (4, (4, 2, 1, 1), (1, 1, 1, 1)),
        (5, (100, 1, 1), (3, 1, 1)),
        (7, (1, 1), (4, 3)),
    ],
)
def test_batches_are_divided_by_shares(batch: int, shares: tuple[int, ...], parts: tuple[int, ...]) -> None:
    assert split_batch(batch, shares) == parts


@pytest.mark.parametrize("world_size", [1, 2, 3, 4, 8, 13])
def test_every_place_of_a_batch_has_one_worker(world_size: int) -> None:
    order = order_of()
    places = [order.local_places(rank, world_size) for rank in range(world_size)]
    assert torch.cat(places).sort().values.tolist() == list(range(BATCH))
    assert [float(len(place)) for place in places] == list(order.loads(world_size))


def test_unequal_loads_get_unequal_workers() -> None:
    order = order_of()
    assert order.plan(8).gpus_by_task == (4, 2, 1, 1)
    assert order.loads(4) == (4.0, 4.0, 4.0, 4.0)
    assert order.loads(3) == (8.0, 8.0, 0.0)
    heavy = order_of(tasks={"a": Task(1, cost=3.0), "b": Task(1), "c": Task(1), "d": Task(1)})
    assert heavy.plan(2).gpus_by_task == (1, 1, 1, 1)
    assert heavy.loads(2) == (12.0, 12.0)
    assert heavy.busiest_rank(2) == 0


def test_each_task_has_epochs_of_its_own() -> None:
    order = order_of()
    batches = [order.global_batch(iteration) for iteration in range(4)]
    firsts = [batch[:8].tolist() for batch in batches]
    assert len({index for first in firsts for index in first}) == 32
    seconds = torch.cat([batch[8:12] for batch in batches])
    assert sorted(seconds[:7].tolist()) == list(range(40, 47))
    assert all(47 <= index < 56 for batch in batches for index in batch[12:14].tolist())


def gradients_on(world_size: int) -> list[Tensor]:
    """Return the means over the workers of an iteration's gradients."""
    function = FourTasks({})
    torch.manual_seed(0)
    model, order = function.init_model(), order_of()
    for rank in range(world_size):
        loader = BatchLoader(
            function.init_dataset(), function.collate, order, rank=rank, world_size=world_size, device=CPU
        )
        batch = loader.load(3)
        (function.train(batch.content, model) * batch.weight / world_size).backward()
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@pytest.mark.parametrize("world_size", [2, 3, 4, 8])
def test_workers_of_tasks_change_no_gradient(world_size: int) -> None:
    torch.testing.assert_close(gradients_on(world_size), gradients_on(1), rtol=1e-5, atol=1e-6)


def train_on_this_rank(iterations: int) -> tuple[list[dict[str, float]], list[Tensor]]:
    runner = runner_of(FourTasks({}), batch=BATCH, synchronisers=[{"kind": "dense", "choices": DENSE}])
    values = [runner.run(iteration).values for iteration in range(iterations)]
    return values, [parameter.detach() for parameter in runner.parts.module.parameters()]


DENSE = {"gradients_in_buckets": True}


def test_training_is_the_same_on_one_and_four_ranks() -> None:
    ((alone, weights),) = run_on_ranks(1, train_on_this_rank, 6)
    for values, rank_weights in run_on_ranks(4, train_on_this_rank, 6):
        torch.testing.assert_close(rank_weights, weights, rtol=1e-5, atol=1e-6)
        losses = [value["loss"] for value in values]
        assert losses == pytest.approx([value["loss"] for value in alone], rel=1e-5)
        assert values[0]["tasks/largest_load"] == 1.0
        assert 0.0 <= values[-1]["tasks/idle_share"] < 1.0
    assert "tasks/idle_share" not in alone[0]
    assert alone[-1]["tasks/idle_share"] == 0.0


def test_idle_time_is_that_of_the_iteration_before() -> None:
    times = TaskTimes(order_of(), None, rank=0, world_size=1)
    times.begin()
    assert times.end(2.0) == {"tasks/largest_load": 1.0}
    times.begin()
    times._seconds = torch.tensor([2.0, 1.0, 0.0])
    assert times.end(1.0) == {
        "tasks/largest_load": 1.0, "tasks/busiest_seconds": 2.0, "tasks/idle_share": 0.5
    }  # fmt: skip


DATA = FourTasks({}).init_dataset()


@pytest.mark.parametrize(
    ("tasks", "dataset", "batch", "complaint"),
    [
        (TASKS, TensorDataset(torch.zeros(3)), BATCH, "must return a ConcatDataset"),
        ({"a": Task(1)}, DATA, BATCH, "1 tasks, and init_dataset.. returned 4 data sets"),
        (TASKS, DATA, 3, "global_batch_size is 3; 4 tasks need at least as many samples"),
        (TASKS | {"a": 4}, DATA, BATCH, "'a' is int; it must be a punctual.Task"),
        ({"a\n": Task(1)}, DATA, BATCH, "must be a text of printable characters"),
        ({f"{number}": Task(1) for number in range(65)}, DATA, BATCH, "65 tasks; the limit is 64"),
        ({"a": Task(1)}, ConcatDataset([TensorDataset(torch.zeros(0))]), BATCH, "of 'a' is empty"),
    ],
)
def test_wrong_tasks_are_refused(tasks: Any, dataset: Any, batch: int, complaint: str) -> None:
    function: Any = SimpleNamespace(tasks=lambda: tasks)
    with pytest.raises(WorkerFailureError, match=complaint):
        build_task_order(function, dataset, batch, 0)


def test_orders_that_depend_on_the_plan_are_refused() -> None:
    function = FourTasks({})
    parts = build_parts(function, CPU, 0)
    with pytest.raises(WorkerFailureError, match="sample_order is .cosine., which tasks.. does not allow"):
        build_sample_order(parts, DATA, "cosine", BATCH, 0)
    parts.module["experts"] = MoELayer(6, 8, experts=2, capacity_factor=1.0)
    with pytest.raises(WorkerFailureError, match="has a capacity_factor, which tasks.. does not allow"):
        build_sample_order(parts, DATA, "random", BATCH, 0)


@pytest.mark.parametrize("value", [0, -1.0, float("nan"), float("inf")])
def test_shares_and_costs_are_above_zero(value: float) -> None:
    with pytest.raises(ValueError, match="must be a number above 0"):
        Task(value)
    with pytest.raises(ValueError, match="must be a number above 0"):
        Task(1, cost=value)
