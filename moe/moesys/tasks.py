"""Tasks of unequal load, and the ranks that a plan gives them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import inf

import numpy as np
from numpy.typing import NDArray

from moe.moesys.checks import check_at_least, check_not_negative, check_positive


@dataclass(frozen=True, slots=True)
class Task:
    """One task of a multi-task model.

    Attributes:
        batch: samples of a step (b).
        cost: cost of a sample relative to samples of other tasks (κ).

    Raises:
        ValueError: the batch is negative, or the cost is not above 0.
    """

    batch: int
    cost: float = 1.0

    def __post_init__(self) -> None:
        check_at_least("batch", self.batch, 0)
        check_positive("cost", self.cost)

    @property
    def load(self) -> float:
        """Cost of a step (w)."""
        return self.cost * self.batch


@dataclass(frozen=True, slots=True)
class RankMemory:
    """Device memory of a rank, in bytes.

    Attributes:
        capacity_bytes: of one GPU.
        shared_bytes: states that every rank has.
        expert_bytes: one task's expert with all its states.
        sample_bytes: activations of one sample.

    Raises:
        ValueError: a value is negative.
    """

    capacity_bytes: float = inf
    shared_bytes: float = 0.0
    expert_bytes: float = 0.0
    sample_bytes: float = 0.0

    def __post_init__(self) -> None:
        for name in ("shared_bytes", "expert_bytes", "sample_bytes"):
            check_not_negative(name, getattr(self, name))
        if not self.capacity_bytes > 0.0:
            raise ValueError(f"capacity_bytes is {self.capacity_bytes}; it must be above 0")

    def fits(
        self, tasks: float | NDArray[np.float64], samples: float | NDArray[np.float64]
    ) -> NDArray[np.bool_]:
        """Return whether a rank with this many tasks and samples fits."""
        needed = (
            self.shared_bytes
            + np.multiply(self.expert_bytes, tasks)
            + np.multiply(self.sample_bytes, samples)
        )
        return np.asarray(needed <= self.capacity_bytes)


@dataclass(frozen=True, slots=True)
class RankShare:
    """The tasks of one rank by index, and the samples of each."""

    tasks: tuple[int, ...]
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class TaskGroup:
    """The ranks of one task, and the samples of each (its *sub-group*)."""

    task: int
    ranks: tuple[int, ...]
    samples: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class ElasticPlan:
    """Ranks of tasks. A task without load has none.

    Attributes:
        tasks: the tasks of the plan.
        quota: the load above which a task is split (q).
        shares: of each rank.
    """

    tasks: tuple[Task, ...]
    quota: float
    shares: tuple[RankShare, ...]

    @property
    def gpus(self) -> int:
        """Number of ranks."""
        return len(self.shares)

    @property
    def loads(self) -> tuple[float, ...]:
        """Load of each rank."""
        return tuple(
            sum(
                self.tasks[task].cost * samples
                for task, samples in zip(share.tasks, share.samples, strict=True)
            )
            for share in self.shares
        )

    @property
    def largest_load(self) -> float:
        """Load of the rank that all others wait for."""
        return max(self.loads, default=0.0)

    @property
    def utilisation(self) -> float:
        """Mean load over largest load."""
        loads = self.loads
        return sum(loads) / len(loads) / max(loads) if loads else 1.0

    @property
    def bubbles(self) -> tuple[float, ...]:
        """Share of a step in which each rank waits."""
        largest = self.largest_load
        return tuple(1.0 - load / largest for load in self.loads)

    @property
    def gpus_by_task(self) -> tuple[int, ...]:
        """Ranks of each task. A rank with several tasks counts for each of them."""
        return tuple(sum(task in share.tasks for share in self.shares) for task in range(len(self.tasks)))

    @property
    def groups(self) -> tuple[TaskGroup, ...]:
        """Sub-groups in the order of tasks."""
        groups = []
        for task in range(len(self.tasks)):
            held = [
                (rank, share.samples[share.tasks.index(task)])
                for rank, share in enumerate(self.shares)
                if task in share.tasks
            ]
            if held:
                groups.append(TaskGroup(task, *(tuple(column) for column in zip(*held, strict=True))))
        return tuple(groups)


def split_samples(batch: int, ranks: int) -> tuple[int, ...]:
    """Return the samples of each replica of a task: the first `batch mod ranks` have one more."""
    check_at_least("ranks", ranks)
    even, more = divmod(batch, ranks)
    return tuple(even + (rank < more) for rank in range(ranks))


def imbalance(loads: Sequence[float]) -> float:
    """Return largest load over mean load; 1 if all loads are 0.

    Raises:
        ValueError: there is no rank.
    """
    if not loads:
        raise ValueError("loads is empty; it must have one load for each rank")
    mean = sum(loads) / len(loads)
    return max(loads) / mean if mean else 1.0
