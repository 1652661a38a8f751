"""A mixture of experts on a whole platform: measured, promised, trained, killed, and on time."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from launch import Platform
from punctual.client import Client
from tests.end_to_end.conftest import EXAMPLES, nothing_is_wrong, wait_for
from tests.end_to_end.test_kills import kill_a_worker

pytestmark = [pytest.mark.live, pytest.mark.timeout(600)]

ITERATIONS = 200
EXPERTS = 8


def test_a_mixture_is_on_time_though_a_worker_dies(
    running_platform: Platform,
    person: Client,
    rows: Callable[..., list[dict[str, Any]]],
    tmp_path: Path,
) -> None:
    job = person.submit(
        EXAMPLES / "moe_language_model.py",
        name="mixture",
        batch_size=32,
        max_iterations=ITERATIONS,
        deadline=900.0,
        checkpoint_seconds=5.0,
        project="demo",
    )
    job.wait_for_verdict(timeout_seconds=180)
    assert job.promised, job.verdict
    wait_for(job, lambda job: job.iterations_done > ITERATIONS // 4, "training", seconds=180)
    kill_a_worker(running_platform, job)
    wait_for(job, lambda job: job.state == "completed", "it completes", seconds=300)
    assert job.promise_outcome == "met"
    assert [recovery.outcome for recovery in job.recoveries()] == ["recovered"]
    told = job.experts()
    assert [len(layer["load"]) for layer in told["layers"]] == [EXPERTS, EXPERTS]
    (stored,) = [artifact for artifact in job.artifacts() if artifact.name == "weights.pt"]
    weights = torch.load(job.download(stored, tmp_path), weights_only=True)
    experts = {name.split(".experts.")[1].split(".")[0] for name in weights if ".experts." in name}
    assert experts == {str(number) for number in range(EXPERTS)}
    assert all(value.isfinite().all() for value in weights.values())
    nothing_is_wrong(rows)
