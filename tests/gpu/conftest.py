"""Real workers on a real GPU, driven by a stand-in for the node agent. Without a GPU: skipped, loudly."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from workers.runtime.at_home.local_agent import LocalAgent

FUNCTIONS = Path(__file__).parent / "functions"
PATTERNS = FUNCTIONS / "patterns.py"
ON_THE_CPU = os.environ.get("PUNCTUAL_GPU_LANE") == "cpu"
DEVICE: dict[str, Any] = {"kind": "cpu"} if ON_THE_CPU else {"kind": "cuda", "index": 0}
NO_GPU = "torch sees no GPU here"
#: Starting CUDA and NCCL takes longer than starting on a CPU.
START_SECONDS = 180.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skip every test of this folder without a GPU."""
    if torch.cuda.is_available() or ON_THE_CPU:
        return
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.skip(reason=NO_GPU))


def pytest_terminal_summary(terminalreporter: Any) -> None:
    """Print how many tests were skipped."""
    skipped = [
        report
        for report in terminalreporter.stats.get("skipped", [])
        if isinstance(report.longrepr, tuple) and NO_GPU in report.longrepr[2]
    ]
    if skipped:
        text = f"{len(skipped)} tests on a GPU did not run: {NO_GPU} (see tests/gpu/README.md)"
        terminalreporter.write_line(text, yellow=True, bold=True)


@pytest.fixture
def agent() -> Iterator[LocalAgent]:
    """An agent whose workers start as programs and see every GPU."""
    with LocalAgent() as running:
        for name in ("CUDA_VISIBLE_DEVICES", "LD_LIBRARY_PATH", "NVIDIA_VISIBLE_DEVICES"):
            if name in os.environ:
                running.environment[name] = os.environ[name]
        yield running


def patterns(iterations: int = 60, batch: int = 64, **changes: Any) -> dict[str, Any]:
    """An assignment of the function `patterns` on the GPU; `hyperparameters` are merged, the rest is
    replaced."""
    hyperparameters = {"global_batch_size": batch, **changes.pop("hyperparameters", {})}
    return {
        "function": {"entry": "patterns:Patterns"},
        "hyperparameters": hyperparameters,
        "termination": {"max_iterations": iterations, "target": None},
        "seed": 5,
        "device": DEVICE,
        **changes,
    }
