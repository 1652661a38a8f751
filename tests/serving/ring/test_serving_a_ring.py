"""A replica whose model is larger than its device: admitted by its target, served, and reported."""

from __future__ import annotations

import hashlib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx
import pytest
import torch

from punctual.protocol.serving import ServingCounts
from tests.serving.functions import tower
from workers.runtime.at_home.local_ports import LOOPBACK, free_port
from workers.runtime.failures import WorkerFailureError
from workers.serving.assignment import ServingAssignment
from workers.serving.generation import ServingGeneration

TOKEN = "its-token"
#: Three of ten layers fit, each padded to 512 bytes.
DEVICE_BYTES = 1700


class Agent:
    """Connection and goals of a worker: serve until three calls were reported."""

    def __init__(self, port: int) -> None:
        self.start = {"tokens": [hashlib.sha256(TOKEN.encode()).hexdigest()]}
        self.reports: list[dict[str, Any]] = []
        self.answers: list[Any] = []
        self.phases: list[str] = []
        self._url = f"http://{LOOPBACK}:{port}/predict"

    @property
    def goal(self) -> str:
        return "drain" if len(self.answers) == 3 else "serve"

    def wait_for_change(self, _seconds: float) -> None:
        body = {"inputs": [[0.5] * tower.WIDTH]}
        headers = {"Authorization": f"Bearer {TOKEN}"}
        self.answers.append(httpx.post(self._url, json=body, headers=headers, timeout=60).json()["outputs"])

    def phase(self, name: str) -> None:
        self.phases.append(name)

    def serving(self, **counts: Any) -> None:
        self.reports.append(counts)


def serve(tmp_path: Path, target_seconds: float | None) -> Agent:
    """Serve the tower with its own weights."""
    (tmp_path / "in").mkdir()
    torch.save(tower.Tower({}).init_model().state_dict(), tmp_path / "in" / "weights.pt")
    port = free_port()
    agent = Agent(port)
    assignment = ServingAssignment.from_message(
        {
            "job": "serve-1", "generation": 3, "rank": 0, "function": {"entry": "tower:Tower"},
            "world_size": 1, "hyperparameters": {}, "interface_address": LOOPBACK, "handover_port": port,
            "device": {"kind": "cpu"}, "files": [{"name": "weights.pt"}],
            "memory": {"device_bytes": DEVICE_BYTES, "latency_target_seconds": target_seconds},
            "serving": {"drain_quiet_seconds": 0.0},
        }
    )  # fmt: skip
    lease = SimpleNamespace(require=lambda: None)
    made: Any = ServingGeneration
    assert made(assignment, tower.Tower({}), agent, agent, tmp_path, lease).run() == 0
    return agent


def test_model_larger_than_its_device_is_served_by_a_ring(tmp_path: Path) -> None:
    agent = serve(tmp_path, 600.0)
    with torch.inference_mode():
        expected = tower.Tower({}).init_model()(torch.full((1, tower.WIDTH), 0.5)).tolist()
    assert agent.answers == [expected] * 3
    reported = ServingCounts(**agent.reports[-1]).ring
    assert reported is not None
    assert (reported.layers, reported.sections, reported.section_bytes) == (10, 3, 512)
    assert (reported.calls, reported.entered, reported.unexpected) == (3, 30, 0)
    assert agent.phases == ["loading", "serving", "draining", "completed"]


def test_target_below_the_copies_is_declined_before_serving(tmp_path: Path) -> None:
    with pytest.raises(WorkerFailureError, match="9 of 10 layers stream from host memory") as raised:
        serve(tmp_path, 1e-9)
    assert raised.value.reason == "declined"
