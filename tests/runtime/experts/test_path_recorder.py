"""Paths of tokens through the experts are recorded during training."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import TensorDataset

from moe.lina.expert_paths import profile_paths
from punctual import TrainingFunction, artifact_path
from punctual.moe import MoELayer, TopK, moe_layers
from punctual.moe.expert_paths import FILE_NAME, ExpertPaths, read_expert_paths
from tests.communication.hooks.ranks import run_on_ranks
from tests.runtime.in_process import runner_of
from workers.runtime.checkpoints import write_final
from workers.runtime.experts import path_recorder
from workers.runtime.experts.path_recorder import EVERY_ITERATIONS, WINDOW_ITERATIONS, PathRecorder
from workers.runtime.iterating.training_state import Progress, capture, restore

WIDTH, LENGTH, BATCH = 6, 5, 8
STABLE = {"moe/balance_loss": 1.0}


class Tower(nn.Module):
    """Two layers with unequal numbers of experts, defined in the opposite order of use."""

    def __init__(self) -> None:
        super().__init__()
        self.second = MoELayer(WIDTH, 8, experts=4, gate=TopK(2), balance_weight=0)
        self.first = MoELayer(WIDTH, 8, experts=3, gate=TopK(2), balance_weight=0)

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        tokens = tokens + self.first(tokens, padding)
        mixed: Tensor = self.second(tokens, padding)
        return mixed


class Towers(TrainingFunction):
    """Trains a tower without changing it, so that its choices can be computed again."""

    def init_model(self) -> nn.Module:
        torch.manual_seed(0)
        return Tower()

    def init_dataset(self) -> TensorDataset:
        points = torch.randn(16, LENGTH, WIDTH, generator=torch.Generator().manual_seed(1))
        return TensorDataset(points)

    def init_optimizer(self, model: nn.Module) -> torch.optim.Optimizer:
        return torch.optim.SGD(model.parameters(), lr=0.0)

    def train(self, batch: Any, model: nn.Module) -> Tensor:
        loss: Tensor = model(batch[0]).square().mean()
        return loss


def choices_of(model: Tower, tokens: Tensor) -> Tensor:
    """Compute the best expert of each token at both layers."""
    flat = tokens.reshape(-1, WIDTH)
    first = model.first.gate_weights(flat).argmax(1)
    second = model.second.gate_weights(flat + model.first(tokens).reshape(-1, WIDTH)).argmax(1)
    return torch.stack([first, second], dim=1)


def record(iterations: int) -> ExpertPaths:
    """Train on all ranks of the default group; return what was recorded."""
    runner = runner_of(Towers({}), batch=BATCH)
    group = torch.distributed.group.WORLD
    recorder = PathRecorder(runner.parts.module, rank=group.rank(), world_size=group.size())
    for iteration in range(iterations):
        recorder.begin_iteration(iteration)
        recorder.end_iteration(runner.run(iteration).values)
    paths = recorder.found()
    assert paths is not None
    return paths


def pass_through(recorder: PathRecorder, model: nn.Module, iteration: int, *inputs: Any) -> None:
    """Record a forward pass."""
    recorder.begin_iteration(iteration)
    model(*inputs)
    recorder.end_iteration(STABLE)


def test_paths_are_the_choices_of_every_eighth_iteration(alone: None) -> None:
    paths = record(EVERY_ITERATIONS + 2)
    assert paths.layers == ("first", "second")
    assert paths.experts == (3, 4)
    function = Towers({})
    model, points = function.init_model(), function.init_dataset().tensors[0]
    expected = choices_of(model, points).view(16, LENGTH, 2)
    # Both recorded batches have all tokens of their samples there.
    assert len(paths.paths) == 2 * BATCH * LENGTH
    for sample in paths.paths.view(-1, LENGTH, 2):
        assert any(torch.equal(sample.long(), known) for known in expected)


def record_on_rank() -> ExpertPaths:
    return record(1)


def test_workers_together_record_what_one_worker_does(alone: None) -> None:
    expected = record(1)
    for recorded in run_on_ranks(2, record_on_rank):
        assert torch.equal(recorded.paths, expected.paths)
        assert recorded.layers == expected.layers


def test_newest_tokens_are_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(path_recorder, "MOST_PATHS", 100)
    monkeypatch.setattr(path_recorder, "TOKENS", 40)
    model, tokens = Tower(), torch.randn(7, 40, WIDTH)
    recorder = PathRecorder(model, rank=0, world_size=1)
    for turn in range(7):
        pass_through(recorder, model, EVERY_ITERATIONS * turn, tokens[turn : turn + 1])
    paths = recorder.found()
    assert paths is not None
    assert torch.equal(paths.paths.long(), choices_of(model, tokens).view(-1, 2)[-100:])


def test_each_iteration_samples_other_places() -> None:
    model, tokens = Tower(), torch.randn(1, 2 * path_recorder.TOKENS, WIDTH)
    recorder = PathRecorder(model, rank=0, world_size=1)
    for turn in range(2):
        pass_through(recorder, model, EVERY_ITERATIONS * turn, tokens)
    paths = recorder.found()
    assert paths is not None
    choices = choices_of(model, tokens)
    assert torch.equal(paths.paths.long(), torch.cat([choices[::2], choices[1::2]]))


def test_padding_has_no_path() -> None:
    model, tokens = Tower(), torch.randn(2, LENGTH, WIDTH)
    padding = torch.zeros(2, LENGTH, dtype=torch.bool)
    padding[1, 2:] = True
    recorder = PathRecorder(model, rank=0, world_size=1)
    pass_through(recorder, model, 0, tokens, padding)
    paths = recorder.found()
    assert paths is not None
    assert len(paths.paths) == LENGTH + 2


def test_paths_before_the_balance_loss_is_stable_are_dropped() -> None:
    model, tokens = Tower(), torch.randn(1, LENGTH, WIDTH)
    recorder = PathRecorder(model, rank=0, world_size=1)
    counts = []
    for iteration, balance in enumerate(b for b in (2.0, 1.5, 1.48, 1.47) for _ in range(WINDOW_ITERATIONS)):
        recorder.begin_iteration(iteration)
        model(tokens)
        recorder.end_iteration({"moe/balance_loss": balance})
        if (iteration + 1) % WINDOW_ITERATIONS == 0:
            paths = recorder.found()
            assert paths is not None
            counts.append(len(paths.paths))
    window = WINDOW_ITERATIONS // EVERY_ITERATIONS * LENGTH
    # The second window differs from the first, so only its own paths remain.
    assert counts == [window, window, 2 * window, 3 * window]


class Unequal(Tower):
    """The second layer receives half of the tokens."""

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        mixed: Tensor = self.second(self.first(tokens)[:, ::2])
        return mixed


class Skipping(Tower):
    """The second layer does not run."""

    def forward(self, tokens: Tensor, padding: Tensor | None = None) -> Tensor:
        mixed: Tensor = self.first(tokens)
        return mixed


@pytest.mark.parametrize("model", [Unequal(), Skipping(), MoELayer(WIDTH, 8, 3), nn.Linear(WIDTH, 2)])
def test_models_without_paths_record_nothing(model: nn.Module) -> None:
    recorder = PathRecorder(model, rank=0, world_size=1)
    pass_through(recorder, model, 0, torch.randn(2, LENGTH, WIDTH))
    assert recorder.found() is None
    assert all(layer.records.on_choices is None for layer in moe_layers(model).values())


def test_recorded_paths_are_part_of_the_state(alone: None) -> None:
    runner = runner_of(Towers({}), batch=BATCH)
    model = runner.parts.module
    recorder = PathRecorder(model, rank=0, world_size=1)
    pass_through(recorder, model, 0, torch.randn(1, LENGTH, WIDTH))
    progress = Progress(expert_paths=recorder.state())
    buffer = io.BytesIO()
    torch.save(capture(runner.parts, progress, generation=1, global_batch_size=BATCH), buffer)
    buffer.seek(0)
    restored = restore(runner.parts, torch.load(buffer, weights_only=True), global_batch_size=BATCH)
    later = PathRecorder(model, rank=0, world_size=1)
    later.load_state(restored.expert_paths)
    pass_through(later, model, 0, torch.randn(1, LENGTH, WIDTH))
    after, before = later.found(), recorder.found()
    assert after is not None
    assert before is not None
    assert len(after.paths) == 2 * LENGTH
    assert torch.equal(after.paths[:LENGTH], before.paths)


def test_paths_lie_beside_the_final_weights(tmp_path: Any) -> None:
    (tmp_path / "out").mkdir()
    expert_paths = ExpertPaths(("a", "b"), (3, 3), torch.tensor([[0, 1], [2, 2]], dtype=torch.uint8))
    final = tmp_path / write_final(tmp_path, tmp_path / "artifacts", {}, {}, expert_paths)
    paths = read_expert_paths(final / FILE_NAME)
    assert torch.equal(paths.paths, expert_paths.paths)
    profile = profile_paths(paths.paths.numpy(), paths.experts, 1)
    assert profile.distributions(1, np.array([[0]])).tolist() == [[0, 1, 0]]
    with pytest.raises(ValueError, match="plain file name of its own"):
        artifact_path(FILE_NAME)
