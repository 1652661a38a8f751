"""Losses and weights that are NaN or infinite: reported at once and briefly; a job that stays so ends."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from torch import nn

from tests.runtime.conftest import REGRESSION, regression
from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.failures import WorkerFailureError
from workers.runtime.iterating.training_state import Progress
from workers.runtime.nonfinite import TOLD_RUNS, NonfiniteWatch, find_nonfinite


class Training:
    """Progress under watch, and the reports about it."""

    def __init__(self, *, stops: bool = True, progress: Progress | None = None) -> None:
        self.told: list[dict[str, Any]] = []
        self.progress = progress or Progress()
        self.watch = NonfiniteWatch(self.told.append, stops=stops)

    def run(self, *losses: float) -> None:
        for loss in losses:
            self.progress.iteration += 1
            self.watch.iteration_done(self.progress, loss)

    def whats(self) -> list[tuple[str, int]]:
        return [(event["what"], event["iteration"]) for event in self.told]


def broken() -> nn.Module:
    module = nn.Linear(2, 1)
    module.weight.data[0, 0] = math.nan
    return module


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_nonfinite_loss_is_reported_when_it_begins_and_ends(value: float) -> None:
    training = Training()
    training.run(1.0, value, value, value, 1.0, 1.0)
    assert training.whats() == [("loss_began", 2), ("loss_ended", 5)]
    assert training.told[1]["since"] == 2


def test_a_hundred_nonfinite_losses_in_a_row_end_the_job() -> None:
    training = Training()
    training.run(*[1.0] * 20, *[math.nan] * 99)
    with pytest.raises(WorkerFailureError, match="100 iterations in a row, from iteration 21 on") as raised:
        training.run(math.nan)
    assert raised.value.reason == "nonfinite"
    assert training.whats() == [("loss_began", 21)]


def test_single_skipped_steps_are_reported_a_few_times_only() -> None:
    training = Training()
    training.run(*[math.inf, 1.0] * 500)
    assert len(training.told) == 2 * TOLD_RUNS


def test_a_job_may_opt_out_of_ending_on_nonfinite_losses() -> None:
    training = Training(stops=False)
    training.run(*[math.nan] * 500)
    assert training.whats() == [("loss_began", 1)]
    assert not training.watch.holds_back(training.progress, broken())


def test_a_nonfinite_run_continues_in_the_next_generation() -> None:
    first = Training()
    first.run(1.0, *[math.nan] * 60)
    second = Training(progress=first.progress)
    second.run(*[math.nan] * 39)
    with pytest.raises(WorkerFailureError, match="from iteration 2 on"):
        second.run(math.nan)
    assert second.told == []


def test_ranks_other_than_0_stop_without_reporting() -> None:
    watch, progress = NonfiniteWatch(None, stops=True), Progress()
    for progress.iteration in range(1, 100):
        watch.iteration_done(progress, math.nan)
    progress.iteration = 100
    with pytest.raises(WorkerFailureError):
        watch.iteration_done(progress, math.nan)


def test_a_state_is_held_back_while_the_loss_is_nan() -> None:
    training = Training()
    training.run(1.0, math.nan)
    assert training.watch.holds_back(training.progress, nn.Linear(2, 1))
    training.run(1.0)
    assert not training.watch.holds_back(training.progress, nn.Linear(2, 1))


def test_nonfinite_weights_are_held_back_until_the_next_loss() -> None:
    """Training may not depend on these weights: then the state is stored."""
    training = Training()
    training.run(1.0)
    assert training.watch.holds_back(training.progress, broken())
    training.run(1.0)
    assert not training.watch.holds_back(training.progress, broken())
    assert training.whats() == [("weights", 1)]


def test_final_weights_that_are_not_finite_are_named() -> None:
    training = Training()
    training.run(1.0)
    assert training.watch.training_done(training.progress, broken()) == ["weight"]
    assert training.told == [
        {"what": "final_weights", "iteration": 1, "tensors": 1, "of": 2, "names": ["weight"]}
    ]
    assert Training().watch.training_done(Progress(), nn.Linear(2, 1)) == []


def test_masks_integers_and_unusual_dtypes_are_checked_correctly() -> None:
    module = nn.Linear(2, 1)
    module.register_buffer("mask", torch.full((2, 2), -math.inf))
    module.register_buffer("count", torch.zeros(3, dtype=torch.int64))
    module.register_buffer("flags", torch.zeros(3, dtype=torch.bool))
    module.register_buffer("eighth", torch.zeros(3).to(torch.float8_e4m3fn))
    module.register_buffer("sixteenth", torch.zeros(3, dtype=torch.bfloat16))
    module.register_buffer("phase", torch.zeros(3, dtype=torch.complex64))
    module.register_buffer("empty", torch.zeros(0))
    module.frozen = nn.Parameter(torch.full((2,), math.inf), requires_grad=False)
    assert find_nonfinite(module) == []
    module.bias.data[0] = math.inf
    module.register_buffer("mean", torch.tensor([math.nan]))
    assert find_nonfinite(module) == ["bias", "mean"]
    assert find_nonfinite(nn.Module()) == []


def test_a_job_that_ends_with_nan_weights_says_so(agent: LocalAgent) -> None:
    """After Nerogar/OneTrainer#1147: the loss became NaN, and training went on to its end."""
    assignment = regression(iterations=30, hyperparameters={"nan_at": 20}, checkpoint_seconds=1e-3)
    generation = agent.start_generation(REGRESSION, assignment, 1)
    report = generation.wait_until_ready().train_from_nothing().report()
    reports = [event for event in generation.leader.of_kind("event") if event["kind"] == "nonfinite"]
    assert [(event["what"], event["iteration"]) for event in reports] == [
        ("loss_began", 21),
        ("final_weights", 30),
    ]
    assert "0.weight" in report["nonfinite_weights"]
    assert report["final"]["loss"] is None
    states = [file for file in generation.leader.of_kind("file") if file["kind"] == "checkpoint"]
    assert states
    assert all(state["iteration"] <= 20 for state in states), "no state of NaN takes the place of a good one"


def test_a_job_whose_loss_stays_nan_is_stopped_on_all_ranks(agent: LocalAgent) -> None:
    assignment = regression(iterations=500, hyperparameters={"nan_at": 20})
    generation = agent.start_generation(REGRESSION, assignment, 2).wait_until_ready().train_from_nothing()
    failed = generation.leader.wait_for_event("failed")
    assert (failed["reason"], failed["iteration"]) == ("nonfinite", 120)
    assert [worker.end() for worker in generation.workers] == [1, 1]
