"""A measurement takes a function, scheduler or data set no further than its job does."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import nn
from torch.utils.data import Dataset

from tests.runtime.function.test_models_in_train import Points
from tests.runtime.in_process import runner_of
from workers.runtime.function.parts import build_dataset
from workers.runtime.iterating.iteration import IterationRunner
from workers.runtime.iterating.lives import Lives, copies_of


class CountingRows(Dataset[Any]):
    """Raises if it is read more often than its job reads it."""

    def __init__(self, most: int) -> None:
        self.most = most
        self.read = 0

    def __len__(self) -> int:
        return 64

    def __getitem__(self, index: int) -> Any:
        self.read += 1
        assert self.read <= self.most
        return torch.ones(6), torch.ones(1)


class Short(Points):
    """Checks by several counters that no life exceeds the job: `iterations` of 8 samples."""

    def __init__(self, hyperparameters: Any) -> None:
        super().__init__(hyperparameters)
        self.iterations = self.hyperparameters["iterations"]
        self.calls = 0
        self.losses: dict[str, list[float]] = {"all": []}
        self.seen = torch.zeros(())

    def init_dataset(self) -> Any:
        self.rows = CountingRows(8 * self.iterations)
        return self.rows

    def init_scheduler(self, optimizer: Any) -> Any:
        # PyTorch would divide by zero with one step.
        steps = max(self.iterations, 2)
        return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=steps)

    def train(self, batch: Any, model: nn.Module) -> Any:
        self.calls += 1
        self.seen += 1
        loss = super().train(batch, model)
        self.losses["all"].append(loss.item())
        assert self.calls == len(self.losses["all"]) == int(self.seen) <= self.iterations
        assert self.rows.read == 8 * self.calls
        return loss


def lives_of(function: Points, length: int | None) -> tuple[Lives, list[IterationRunner]]:
    """Return the function's lives, and the runner of each."""
    dataset = build_dataset(function, 0)
    begun: list[IterationRunner] = []

    def begin() -> IterationRunner:
        other, rows = copies_of(function, dataset)
        other.init_dataset = lambda: rows  # type: ignore[method-assign]
        begun.append(runner_of(other))
        return begun[-1]

    return Lives(begin, length), begun


@pytest.mark.parametrize("iterations", [1, 3, 40])
def test_measuring_restarts_training_at_the_jobs_end(alone: None, iterations: int) -> None:
    function = Short({"iterations": iterations})
    lives, begun = lives_of(function, iterations)
    lives.rehearse()
    losses = [lives.iterate().values["loss"] for _ in range(2 * iterations + 10)]
    assert len(begun) == -(-(1 + len(losses)) // iterations)
    # Each later life is the job from its beginning.
    assert losses[iterations - 1] == losses[2 * iterations - 1]
    assert (function.calls, function.losses, function.seen, function.rows.read) == (0, {"all": []}, 0, 0)
    states = [runner.parts.module.state_dict() for runner in begun[1:-1]]
    assert all(torch.equal(state[name], states[0][name]) for state in states for name in state)


def test_some_iterations_follow_in_one_life(alone: None) -> None:
    lives, begun = lives_of(Short({"iterations": 5}), 5)
    assert [lives.go_on_for(4), len(begun)] == [4, 1]
    lives.iterate()
    lives.iterate()
    assert [lives.go_on_for(4), len(begun)] == [4, 2]
    assert [lives.go_on_for(9), len(begun)] == [5, 2]


def test_a_job_without_an_end_has_one_life(alone: None) -> None:
    lives, begun = lives_of(Points({}), None)
    for _ in range(9):
        lives.iterate()
    assert [lives.go_on_for(9), len(begun)] == [9, 1]


def test_copies_share_data_but_no_state() -> None:
    function: Any = Short({"iterations": 1})
    function.init_dataset()
    function.trains = function.train
    held = function.held = torch.zeros(1 << 20)
    other: Any
    other, rows = copies_of(function, function.rows)
    assert other.held is held
    assert other.trains.__self__ is other
    assert other.rows is rows is not function.rows
    assert other.losses["all"] is not function.losses["all"]
    assert other.seen is not function.seen


def test_a_data_set_that_cannot_be_copied_is_shared() -> None:
    class Single(CountingRows):
        def __reduce_ex__(self, protocol: Any) -> Any:
            raise TypeError("there is one alone")

    rows = Single(1)
    assert copies_of(Points({}), rows)[1] is rows
