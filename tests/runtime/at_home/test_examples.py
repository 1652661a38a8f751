"""The examples learn, and train the same on two workers as on one."""

from __future__ import annotations

from typing import Any

import pytest

from tests.runtime.conftest import EXAMPLES
from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.try_function import find_entry

SHORT_RUNS: dict[str, dict[str, Any]] = {
    "image_classifier": {"batch": 64, "iterations": 200, "metric": "validation_accuracy", "at_least": 0.6},
    "character_model": {"batch": 16, "iterations": 80, "metric": "validation_loss", "at_most": 3.3},
    "recommender": {
        "batch": 256,
        "iterations": 60,
        "world": {"users": 200, "items": 80, "rating_count": 40_000},
        "metric": "validation_accuracy",
        "at_least": 0.7,
    },
}


@pytest.mark.parametrize(
    "name",
    [name if name == "recommender" else pytest.param(name, marks=pytest.mark.live) for name in SHORT_RUNS],
)
def test_an_example_learns_whatever_the_number_of_workers(agent: LocalAgent, name: str) -> None:
    run = SHORT_RUNS[name]
    source = EXAMPLES / f"{name}.py"
    assignment = {
        "function": {"entry": find_entry(source)},
        "hyperparameters": {
            "global_batch_size": run["batch"],
            "gradient_clip_norm": 5.0,
            **run.get("world", {}),
        },
        "termination": {"max_iterations": run["iterations"], "target": None},
        "seed": 1,
    }
    reports = []
    for world_size in (1, 2):
        generation = agent.start_generation(source, assignment, world_size).wait_until_ready()
        reports.append(generation.train_from_nothing().report())
        generation.stop()
    alone, together = reports
    value = alone["final"][run["metric"]]
    assert run.get("at_least", 0) <= value <= run.get("at_most", float("inf"))
    assert together["sample_order_digest"] == alone["sample_order_digest"]
    assert together["final"]["loss"] == pytest.approx(alone["final"]["loss"], rel=1e-3)
