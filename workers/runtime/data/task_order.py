"""Samples of several tasks in training: each batch has a fixed number of each task's samples, and workers
serve tasks by their loads.

The batch is the same for any number of workers: samples of the first task, then of the second, each task in
its own random order. The elastic planner of MoESys (2.5) assigns places of the batch to workers. Every sample
has the same weight wherever it is computed, so a plan changes gradients only by rounding.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor
from torch.utils.data import ConcatDataset

from moe.moesys import tasks as planned
from moe.moesys.choices import Mode
from moe.moesys.elastic import plan_elastic
from moe.moesys.tasks import ElasticPlan
from punctual.function import TrainingFunction
from punctual.names import name_problem
from punctual.randomness import derive_seed
from punctual.tasks import Task
from workers.runtime.data.sample_order import SampleOrder
from workers.runtime.failures import WorkerFailureError, blaming_the_function

_log = logging.getLogger(__name__)

MAX_TASKS = 64


class TaskOrder(SampleOrder):
    """The samples of each task in an iteration, and their workers.

    Attributes:
        names: names of the tasks.
        batches: number of samples of each task in a batch.
    """

    def __init__(
        self, sizes: Sequence[int], tasks: Mapping[str, Task], global_batch_size: int, seed: int
    ) -> None:
        """Build the order.

        Args:
            sizes: number of samples of each task.

        Raises:
            ValueError: a batch has fewer samples than there are tasks.
        """
        super().__init__(sum(sizes), global_batch_size, seed)
        self.names = tuple(tasks)
        self._costs = [task.cost for task in tasks.values()]
        self.batches = split_batch(global_batch_size, [task.share for task in tasks.values()])
        self._begins = [0, *accumulate(sizes)][:-1]
        self._orders = [
            SampleOrder(size, batch, derive_seed(seed, "task", number))
            for number, (size, batch) in enumerate(zip(sizes, self.batches, strict=True))
        ]
        self._plans: dict[int, ElasticPlan] = {}

    def global_batch(self, iteration: int) -> Tensor:
        """Return the indices (int64) of `iteration`'s samples, task by task. Each task has its own epochs."""
        parts = zip(self._begins, self._orders, strict=True)
        return torch.cat([begin + order.global_batch(iteration) for begin, order in parts])

    def plan(self, world_size: int) -> ElasticPlan:
        """Return the workers' shares. Workers that cannot lower the largest load have none."""
        if world_size not in self._plans:
            loads = [planned.Task(batch, cost) for batch, cost in zip(self.batches, self._costs, strict=True)]
            self._plans[world_size] = plan_elastic(loads, Mode.BUDGET, world_size)
        return self._plans[world_size]

    def loads(self, world_size: int) -> tuple[float, ...]:
        """Return the load of each worker."""
        loads = self.plan(world_size).loads
        return loads + (0.0,) * (world_size - len(loads))

    def local_places(self, rank: int, world_size: int) -> Tensor:
        """Return the places of a worker's samples in the global batch, ascending."""
        next_places = [0, *accumulate(self.batches)]
        shares = self.plan(world_size).shares
        for share in shares[:rank]:
            for task, samples in zip(share.tasks, share.samples, strict=True):
                next_places[task] += samples
        own = shares[rank : rank + 1]
        places = [
            torch.arange(next_places[task], next_places[task] + samples)
            for share in own
            for task, samples in zip(share.tasks, share.samples, strict=True)
        ]
        return torch.cat(places) if places else torch.zeros(0, dtype=torch.int64)

    def busiest_rank(self, world_size: int) -> int:
        """Return the worker with the largest load."""
        loads = self.loads(world_size)
        return loads.index(max(loads))

    def log_plan(self, world_size: int) -> None:
        """Log the workers of each task."""
        plan = self.plan(world_size)
        groups = ", ".join(f"{self.names[each.task]} on {list(each.ranks)}" for each in plan.groups)
        _log.info("tasks: %s; mean load is %.0f%% of the largest", groups, 100 * plan.utilisation)


def split_batch(batch: int, shares: Sequence[float]) -> tuple[int, ...]:
    """Divide a batch among tasks in proportion to their shares, at least one sample each.

    The rounding remainder goes to the largest remainders, and among equal ones to the first.

    Raises:
        ValueError: there are more tasks than samples.
    """
    if batch < len(shares):
        raise ValueError(f"global_batch_size is {batch}; {len(shares)} tasks need at least as many samples")
    # Then correct the sum where a count is farthest from its exact part.
    counts = [1] * len(shares)
    total = sum(shares)
    exact = [batch * share / total for share in shares]
    for number, part in enumerate(exact):
        counts[number] = max(1, int(part))
    while sum(counts) != batch:
        missing = [part - count for part, count in zip(exact, counts, strict=True)]
        if sum(counts) < batch:
            counts[missing.index(max(missing))] += 1
        else:
            excess = [gap if count > 1 else float("inf") for gap, count in zip(missing, counts, strict=True)]
            counts[excess.index(min(excess))] -= 1
    return tuple(counts)


def build_task_order(
    function: TrainingFunction, dataset: Any, global_batch_size: int, seed: int
) -> TaskOrder | None:
    """Build the order of a function that declares tasks; return None for any other.

    Raises:
        WorkerFailureError: the tasks do not fit the data set or the batch.
    """
    with blaming_the_function("tasks()"):
        tasks = dict(function.tasks())
    if not tasks:
        return None
    problem = _problem(tasks, dataset)
    if problem is None:
        try:
            return TaskOrder(list(map(len, dataset.datasets)), tasks, global_batch_size, seed)
        except ValueError as error:
            problem = str(error)
    raise WorkerFailureError("function_error", f"tasks(): {problem}")


def _problem(tasks: Mapping[Any, Any], dataset: Any) -> str | None:
    if len(tasks) > MAX_TASKS:
        return f"there are {len(tasks)} tasks; the limit is {MAX_TASKS}"
    for name, task in tasks.items():
        if not isinstance(name, str) or not name or name_problem(name) is not None:
            return f"the name {name!a} must be a text of printable characters"
        if not isinstance(task, Task):
            return f"{name!r} is {type(task).__name__}; it must be a punctual.Task"
    if not isinstance(dataset, ConcatDataset):
        return "init_dataset() must return a ConcatDataset with one data set for each task, in their order"
    if len(dataset.datasets) != len(tasks):
        return f"there are {len(tasks)} tasks, and init_dataset() returned {len(dataset.datasets)} data sets"
    empty = [name for name, each in zip(tasks, dataset.datasets, strict=True) if not len(each)]
    return f"the data set of {empty[0]!r} is empty" if empty else None
