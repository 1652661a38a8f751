"""A state trained on a GPU resumes there: from a file, from memory, on more ranks and on fewer."""

from __future__ import annotations

import pytest
import torch

from tests.gpu.conftest import PATTERNS, START_SECONDS, patterns
from workers.runtime.at_home.local_agent import Generation, LocalAgent

ITERATIONS = 120


def started(agent: LocalAgent, world_size: int, number: int = 1) -> Generation:
    slowly = {"sleep_seconds": 0.03}
    asked = patterns(iterations=ITERATIONS, generation=number, hyperparameters=slowly)
    generation = agent.start_generation(PATTERNS, asked, world_size, seconds=START_SECONDS)
    return generation.wait_until_ready(START_SECONDS)


def weights_of(generation: Generation) -> dict[str, torch.Tensor]:
    generation.report(START_SECONDS)
    path = generation.leader.box / "out" / "final" / "weights.pt"
    weights: dict[str, torch.Tensor] = torch.load(path, weights_only=True)
    return weights


@pytest.fixture
def uninterrupted(agent: LocalAgent) -> dict[str, torch.Tensor]:
    """Return the result of an undisturbed job."""
    return weights_of(started(agent, 1).train_from_nothing())


def assert_close(found: dict[str, torch.Tensor], expected: dict[str, torch.Tensor]) -> None:
    for name, tensor in expected.items():
        # Another order of additions: not equal bit by bit, but far closer than another run would be.
        torch.testing.assert_close(found[name].float(), tensor.float(), rtol=2e-2, atol=2e-3)


def test_a_job_resumes_from_a_durable_state(
    agent: LocalAgent, uninterrupted: dict[str, torch.Tensor]
) -> None:
    first = started(agent, 1).train_from_nothing()
    first.wait_for_iteration(20, START_SECONDS)
    first.goal("suspend")
    point = first.checkpoint_files(START_SECONDS)
    assert 20 <= point.iteration < ITERATIONS
    assert_close(weights_of(started(agent, 1, 2).train_from_checkpoint(point)), uninterrupted)


@pytest.mark.parametrize("ranks", [1, 2])
def test_a_state_is_handed_over_from_memory(
    agent: LocalAgent, uninterrupted: dict[str, torch.Tensor], ranks: int
) -> None:
    """Two ranks share the device: NCCL refuses this, gloo does not."""
    first, second = started(agent, 1), started(agent, ranks, 2)
    first.train_from_nothing().wait_for_iteration(10, START_SECONDS)
    weights = weights_of(second.train_from(first))
    if ranks == 1:
        assert_close(weights, uninterrupted)
    else:
        # Batch normalisation sees half batches: the same job, other statistics.
        assert weights.keys() == uninterrupted.keys()
    assert second.leader.of_kind("metrics")[-1]["iteration"] == ITERATIONS


def test_several_ranks_on_one_device_train_together(agent: LocalAgent) -> None:
    generation = started(agent, 2).train_from_nothing()
    report = generation.report(START_SECONDS)
    assert report["final"]["seen_accuracy"] > 0.9
    assert [worker.end(60) for worker in generation.workers] == [0, 0]
