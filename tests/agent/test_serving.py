"""A real agent with real serving workers in their sandboxes: weights from the store, requests over HTTP,
drained without a failed request."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from tests.agent.conftest import PROJECT, RunningAgent, wait_until
from tests.agent.fake_control_plane import FakeControlPlane
from workers.runtime.at_home.local_ports import free_port

FUNCTION = (Path(__file__).parents[1] / "serving" / "functions" / "scaler.py").read_bytes()
TOKEN = "token-of-the-deployment"


class Deployment:
    """Weights in the store, and the desired state of their replicas."""

    def __init__(self, agent: RunningAgent, plane: FakeControlPlane) -> None:
        self.digest = hashlib.sha256(FUNCTION).hexdigest()
        plane.bundles[self.digest] = FUNCTION
        content = io.BytesIO()
        torch.save({"weight": torch.tensor([[3.0]])}, content)
        self.weights = agent.store / "jobs" / "abc" / "weights.pt"
        self.weights.parent.mkdir(parents=True)
        self.weights.write_bytes(content.getvalue())
        self.ports: dict[str, int] = {}

    def replica(self, key: str, goal: str = "serve", token: str = TOKEN) -> dict[str, Any]:
        """Return an entry of the desired state."""
        content = self.weights.read_bytes()
        port = self.ports.setdefault(key, free_port())
        return {
            "job": key,
            "generation": 1,
            "epoch": 1,
            "purpose": "serving",
            "goal": goal,
            "start": {"from": "serving", "tokens": [hashlib.sha256(token.encode()).hexdigest()]},
            "world_size": 1,
            "workers": [{"rank": 0, "gpu_index": 0, "handover_port": port}],
            "function": {"digest": self.digest, "entry": "scaler:Scaler", "requirements_digest": None},
            "hyperparameters": {},
            "seed": 1,
            "data": [],
            "profile": None,
            "files": [
                {
                    "name": "weights.pt",
                    "uri": self.weights.as_uri(),
                    "bytes": len(content),
                    "sha256": hashlib.sha256(content).hexdigest(),
                }
            ],
            "serving": {"drain_quiet_seconds": 0.2},
        }

    def predict(self, key: str, *inputs: Any, token: str = TOKEN) -> httpx.Response:
        """Return a replica's answer."""
        url = f"http://127.0.0.1:{self.ports[key]}/predict"
        headers = {"Authorization": f"Bearer {token}"}
        return httpx.post(url, json={"inputs": inputs}, headers=headers, timeout=60)


def test_agent_serves_weights_reports_counts_and_drains(agent: RunningAgent, plane: FakeControlPlane) -> None:
    agent.runtime = PROJECT
    deployment = Deployment(agent, plane)
    agent.start()
    plane.want(deployment.replica("serve-1"))
    wait_until(lambda: plane.phase("serve-1") == "serving", "it serves", 120)
    assert deployment.predict("serve-1", 1, 2).json() == {"outputs": [3.0, 6.0], "generation": 1}
    counts = wait_until(
        lambda: [entry for report in plane.reports for entry in report["serving"] if entry["requests"]],
        "its counts are reported",
    )
    assert (counts[0]["job"], counts[0]["requests"], counts[0]["inputs"]) == ("serve-1", 1, 2)
    # Code that ends its process ends one worker; the control plane replaces it under another key.
    with pytest.raises(httpx.TransportError):
        deployment.predict("serve-1", "end")
    failed = wait_until(lambda: plane.events_of("failed"), "its end is reported")
    assert (failed[0]["job"], failed[0]["reason"]) == ("serve-1", "killed")
    plane.want(deployment.replica("serve-2"))
    wait_until(lambda: plane.phase("serve-2") == "serving", "another one serves", 120)
    assert plane.worker("serve-1") == {}
    plane.want(deployment.replica("serve-2", token="later"))
    wait_until(
        lambda: deployment.predict("serve-2", 1, token="later").status_code == 200, "the token is passed on"
    )
    assert deployment.predict("serve-2", 1).status_code == 401
    # It answers while its agent is away and is adopted again.
    agent.kill()
    assert deployment.predict("serve-2", 1, token="later").status_code == 200
    before = len(plane.reports)
    agent.start()
    wait_until(
        lambda: [entry for report in plane.reports[before:] for entry in report["serving"]], "it is found", 60
    )
    assert plane.phase("serve-2") == "serving"
    plane.want(deployment.replica("serve-2", "drain", "later"))
    wait_until(lambda: plane.phase("serve-2") == "exited", "it has drained", 60)
    plane.want()
    wait_until(lambda: plane.reports[-1]["workers"] == [], "nothing is left of it")
    assert [event["job"] for event in plane.events_of("failed")] == ["serve-1"]
