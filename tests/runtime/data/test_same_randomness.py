"""A function's random numbers before training are the same in every process of its job."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from punctual import sample_rand, sample_randn
from punctual.randomness import enter_iteration
from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.function.function_loading import load_function

DRAWS = """
import random
import numpy
import torch
from punctual import TrainingFunction

def draw():
    return random.random(), numpy.random.random(), float(torch.rand(()))

AT_IMPORT = draw()

class Draws(TrainingFunction):
    def __init__(self, hyperparameters):
        super().__init__(hyperparameters)
        self.drawn = AT_IMPORT + draw()
    def init_model(self): ...
    def init_dataset(self): ...
    def init_optimizer(self, model): ...
    def train(self, batch, model): ...
"""


def test_a_modules_random_numbers_follow_the_seed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "bundle").mkdir()
    (tmp_path / "bundle" / "that_draws.py").write_text(DRAWS)
    monkeypatch.setattr(sys, "path", list(sys.path))

    def drawn(seed: int) -> tuple[float, ...]:
        sys.modules.pop("that_draws", None)
        return tuple(load_function(tmp_path, "that_draws:Draws", {}, seed).drawn)  # type: ignore[attr-defined]

    assert drawn(1) == drawn(1)
    assert not set(drawn(1)) & set(drawn(2))
    assert len(set(drawn(1))) == 6


def test_string_hashes_are_equal_in_all_workers_at_home() -> None:
    with LocalAgent() as agent:
        command = [sys.executable, "-P", "-c", "print(hash('of a string'))"]
        hashes = {subprocess.check_output(command, env=agent.environment) for _ in range(2)}
    assert len(hashes) == 1


def test_rows_of_samples_do_not_depend_on_the_split() -> None:
    def draw(*indices: int) -> list[float]:
        enter_iteration(5, 3, indices)
        return torch.cat([sample_rand(2), sample_randn(2)], 1).flatten().tolist()

    assert draw(7, 1, 4) == draw(7) + draw(1, 4)
    assert len(set(draw(7, 1, 4))) == 12
