"""The agent with the training runtime itself: a real model, handed over, suspended and resumed."""

from __future__ import annotations

import hashlib
import io
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.conftest import PROJECT, RunningAgent, wait_until
from tests.agent.fake_control_plane import FakeControlPlane, generation, recovery_point
from workers.runtime.at_home.local_ports import free_port

FUNCTION = b'''
import torch
from punctual import TrainingFunction

class Line(TrainingFunction):
    """Learns y = 3 x."""
    def init_model(self):
        return torch.nn.Linear(1, 1)
    def init_dataset(self):
        x = torch.linspace(-1, 1, 64).unsqueeze(1)
        return torch.utils.data.TensorDataset(x, 3 * x)
    def init_optimizer(self, model):
        return torch.optim.SGD(model.parameters(), lr=0.3)
    def train(self, batch, model):
        x, y = batch
        return torch.nn.functional.mse_loss(model(x), y)
'''
DEVICE_MODEL = {
    "name": "test",
    "fixed_seconds": 0.02,
    "seconds_per_sample": 0.001,
}


@pytest.mark.slow  # the smoke test also trains on more workers and from checkpoints
def test_a_model_trains_on_one_worker_then_two_then_from_a_checkpoint(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    agent.runtime = PROJECT
    agent.settings |= {"warm_workers": 3, "emulate": DEVICE_MODEL}
    digest = hashlib.sha256(FUNCTION).hexdigest()
    plane.bundles[digest] = FUNCTION
    ports = [free_port() for _ in range(9)]

    def line(number: int, workers: int, iterations: int = 1_000_000, **changes: Any) -> dict[str, Any]:
        return generation(
            number=number,
            world_size=workers,
            workers=[
                {"rank": rank, "gpu_index": rank, "handover_port": ports[3 * number - 2 + rank]}
                for rank in range(workers)
            ],
            master_port=ports[3 * number - 3],
            function={"digest": digest, "entry": "line:Line", "requirements_digest": None},
            hyperparameters={"global_batch_size": 8, "learning_rate": 0.1},
            termination={"max_iterations": iterations, "target": None},
            **changes,
        )

    agent.start()
    plane.want(line(1, 1))
    wait_until(lambda: plane.worker().get("iteration", 0) > 10, "one worker trains", 90)
    plane.want(line(1, 1), line(2, 2, goal="prepare", start=None))
    wait_until(lambda: plane.phase(number=2, rank=1) == plane.phase(number=2) == "ready", "two are ready", 90)
    holder = {"tier": "memory", "address": "127.0.0.1", "port": ports[1]}
    shards = [{"id": 0, "reader": 0, "holders": [holder]}]
    handover = {"from": "handover", "generation": 1, "world_size": 1, "shards": shards}
    plane.want(line(1, 1, goal="hand_over"), line(2, 2, start=handover))
    wait_until(lambda: plane.phase(number=2) == "training", "two workers train", 60)
    wait_until(lambda: len(plane.events_of("first_iteration")) == 2, "that is an event")
    first = next(event for event in plane.events_of("first_iteration") if event["generation"] == 2)
    assert first["iteration"] > 10, "it went on where the other one had stopped"
    plane.want(line(2, 2, start=handover))
    wait_until(
        lambda: plane.worker(number=2).get("iteration", 0) > first["iteration"] + 20, "they train on", 60
    )
    plane.want(line(2, 2, start=handover, goal="suspend"))
    wait_until(
        lambda: sum(e["reason"] == "suspend" for e in plane.events_of("shard_stored")) == 2,
        "the state is kept",
    )
    stored = [event for event in plane.events_of("shard_stored") if event["reason"] == "suspend"]
    assert {event["rank"] for event in stored} == {0, 1}
    used = {link for report in plane.reports for link in report["link_load"] or {}}
    # Workers in their sandboxes use the links: the hand-over within the server, copies, files, the store.
    assert used >= {"within_server", "host_to_device", "disk", "network"}
    wait_until(lambda: plane.phase(number=2) == "exited", "the second generation has ended")
    last = stored[0]["iteration"] + 10
    plane.want(line(3, 1, last, start=recovery_point(*stored)))
    completed = wait_until(lambda: plane.events_of("completed"), "the model is trained", 90)[0]
    assert (completed["generation"], completed["iteration"]) == (3, last)
    weights = next(item for item in completed["artifacts"] if item["name"] == "weights.pt")
    content = Path(weights["uri"].removeprefix("file://")).read_bytes()
    state = torch.load(io.BytesIO(content), weights_only=True)
    assert abs(state["weight"].item() - 3) < 0.1
    assert plane.events_of("failed") == []
    losses = [entry["values"]["loss"] for entry in plane.metrics if "loss" in entry["values"]]
    assert losses[-1] < losses[0] / 100


# Its waits add up to more than a test's usual limit: two workers import torch on a busy machine.
@pytest.mark.timeout(400)
@pytest.mark.live
def test_an_absurd_batch_stays_within_its_workers_memory_limit(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    """A global batch of a thousand million samples once took 16.6 GB of the node."""
    agent.runtime = PROJECT
    agent.settings |= {"emulate": DEVICE_MODEL, "worker_memory_bytes": 400 * 1024**2}
    digest = hashlib.sha256(FUNCTION).hexdigest()
    plane.bundles[digest] = FUNCTION

    def line(job: str, batch: int, gpu_index: int) -> dict[str, Any]:
        ports = free_port(), free_port()
        return generation(
            job,
            workers=[{"rank": 0, "gpu_index": gpu_index, "handover_port": ports[1]}],
            master_port=ports[0],
            function={"digest": digest, "entry": "line:Line", "requirements_digest": None},
            hyperparameters={"global_batch_size": batch, "learning_rate": 0.1},
        )

    agent.start()
    plane.want(line("neighbour", 8, 0), line("absurd", 10**9, 1))
    failure = wait_until(lambda: plane.events_of("failed"), "the absurd one fails", 150)[0]
    assert (failure["job"], failure["reason"]) == ("absurd", "memory_exceeded")
    assert "more than 400 MiB of memory" in failure["message"]
    wait_until(lambda: plane.worker("neighbour").get("iteration", 0) > 20, "the neighbour trains", 90)
    assert [event["job"] for event in plane.events_of("failed")] == ["absurd"]
