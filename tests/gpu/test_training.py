"""One rank on one GPU: NCCL with one member, metrics, evaluation, mixed precision, and missing GPUs."""

from __future__ import annotations

import statistics

import pytest
import torch

from tests.gpu.conftest import ON_THE_CPU, PATTERNS, START_SECONDS, patterns
from workers.runtime.at_home.local_agent import LocalAgent


@pytest.mark.parametrize("precision", ["full", "mixed"])
def test_weights_trained_on_the_gpu_load_without_one(agent: LocalAgent, precision: str) -> None:
    asked = patterns(iterations=150, hyperparameters={"precision": precision, "evaluate_every": 50})
    generation = agent.start_generation(PATTERNS, asked, 1, seconds=START_SECONDS)
    generation.wait_until_ready(START_SECONDS).train_from_nothing()
    report = generation.report(START_SECONDS)
    assert report["iterations"] == 150
    assert report["final"]["seen_accuracy"] > 0.9
    assert report["final"]["on_gpu"] == (0.0 if ON_THE_CPU else 1.0)
    weights = torch.load(generation.leader.box / "out" / "final" / "weights.pt", weights_only=True)
    assert {tensor.device.type for tensor in weights.values()} == {"cpu"}
    assert weights["0.weight"].dtype == torch.float32, "mixed precision keeps whole weights"
    assert generation.leader.end(60) == 0


def test_a_missing_gpu_is_reported_as_missing(agent: LocalAgent) -> None:
    if ON_THE_CPU:
        pytest.skip("there is no GPU that could be missing")
    asked = patterns(device={"kind": "cuda", "index": torch.cuda.device_count()})
    generation = agent.start_generation(PATTERNS, asked, 1, seconds=START_SECONDS)
    failed = generation.leader.wait_for_event("failed", START_SECONDS)
    assert failed["reason"] == "start_failed"
    assert f"GPU {torch.cuda.device_count()} cannot be used" in failed["message"]


def test_train_seconds_include_the_gpus_work_not_only_the_launch(agent: LocalAgent) -> None:
    generation = agent.start_generation(PATTERNS, patterns(iterations=300), 1, seconds=START_SECONDS)
    generation.wait_until_ready(START_SECONDS).train_from_nothing()
    generation.report(START_SECONDS)
    metrics = generation.leader.of_kind("metrics")
    assert all(entry["train_seconds"] > 0 for entry in metrics)
    shares = [entry["train_seconds"] * entry["iterations_per_second"] for entry in metrics]
    assert statistics.median(shares) <= 1.05, "no more of an iteration than the whole of it"
