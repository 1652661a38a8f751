"""Real worker processes, driven by a stand-in for the node agent."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist

from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.at_home.local_nursery import Nursery

FUNCTIONS = Path(__file__).parent / "functions"
EXAMPLES = Path(__file__).parents[2] / "examples"
REGRESSION = FUNCTIONS / "regression.py"


def emulated(
    seconds_per_sample: float = 0.0,
    fixed_seconds: float = 0.02,
    *,
    latency_seconds: float = 0.0,
    network: float = 1e8,
    within_server: float = 1e9,
    **changes: Any,
) -> dict[str, Any]:
    """Return an emulated device of the given speed, on a server with links of these rates."""
    links = {
        "within_server": {"bytes_per_second": within_server, "latency_seconds": latency_seconds},
        "network": {"bytes_per_second": network, "latency_seconds": latency_seconds},
        "spine": {"bytes_per_second": network, "latency_seconds": 0.0},
        "host_to_device": {"bytes_per_second": 1e9},
        "disk": {"bytes_per_second": 1e9},
        **changes,
    }
    model = {"fixed_seconds": fixed_seconds, "seconds_per_sample": seconds_per_sample}
    return {"kind": "emulated", "name": "emulated-test", "model": model, "links": links}


def regression(iterations: int = 60, batch: int = 24, **changes: Any) -> dict[str, Any]:
    """Return an assignment of the regression function; `hyperparameters` are merged, the rest is replaced."""
    hyperparameters = {"global_batch_size": batch, **changes.pop("hyperparameters", {})}
    return {
        "function": {"entry": "regression:Regression"},
        "hyperparameters": hyperparameters,
        "termination": {"max_iterations": iterations, "target": None},
        "seed": 11,
        **changes,
    }


@pytest.fixture(scope="session", autouse=True)
def _one_thread() -> None:
    """Use one thread: PyTorch's threads that wait for each other take the processor from other tests."""
    torch.set_num_threads(1)


@pytest.fixture
def agent(nursery: Nursery) -> Iterator[LocalAgent]:
    """An agent whose workers start quickly."""
    with LocalAgent(nursery.start_worker) as running:
        yield running


@pytest.fixture
def alone() -> Iterator[None]:
    """This process is the only rank of its process group."""
    dist.init_process_group("gloo", store=dist.HashStore(), rank=0, world_size=1)
    yield
    dist.destroy_process_group()
