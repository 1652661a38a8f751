"""Recovery points in memory on a real node: the agent, its store, workers under PyTorch, and kill -9."""

from __future__ import annotations

import hashlib
import io
import os
import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.agent.conftest import PROJECT, RunningAgent, wait_until
from tests.agent.fake_control_plane import FakeControlPlane, generation
from workers.runtime.at_home.local_ports import free_port

FUNCTION = b'''
import torch
from punctual import TrainingFunction

class Noisy(TrainingFunction):
    """Draws from generators, keeps moments, has a schedule: all of it must come back."""
    def init_model(self):
        return torch.nn.Sequential(
            torch.nn.Linear(8, 64), torch.nn.Dropout(0.3), torch.nn.LayerNorm(64), torch.nn.Linear(64, 1)
        )
    def init_dataset(self):
        x = torch.randn(256, 8, generator=torch.Generator().manual_seed(1))
        return torch.utils.data.TensorDataset(x, x.sum(1, keepdim=True))
    def init_optimizer(self, model):
        return torch.optim.AdamW(model.parameters(), lr=0.01)
    def init_scheduler(self, optimizer):
        return torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 120)
    def train(self, batch, model):
        x, y = batch
        return torch.nn.functional.mse_loss(model(x), y)
'''
DIGEST = hashlib.sha256(FUNCTION).hexdigest()
ITERATIONS = 120
DEVICE_MODEL = {"name": "test", "fixed_seconds": 0.02, "seconds_per_sample": 0.0}


class Training:
    """A job of two workers on a node, with the entries that the control plane would send."""

    def __init__(self, agent: RunningAgent, plane: FakeControlPlane, job: str = "job") -> None:
        agent.runtime = PROJECT
        agent.settings |= {"warm_workers": 2, "emulate": DEVICE_MODEL, "memory_point_share": 1.0}
        plane.bundles[DIGEST] = FUNCTION
        self.agent, self.plane, self.job = agent, plane, job

    def wanted(self, number: int, iterations: int = 1_000_000, **changes: Any) -> dict[str, Any]:
        ports = [free_port() for _ in range(3)]
        return generation(
            self.job,
            number,
            world_size=2,
            workers=[{"rank": rank, "gpu_index": rank, "handover_port": ports[rank]} for rank in range(2)],
            master_port=ports[2],
            function={"digest": DIGEST, "entry": "noisy:Noisy", "requirements_digest": None},
            hyperparameters={"global_batch_size": 16},
            termination={"max_iterations": iterations, "target": None},
            seed=5,
            **changes,
        )

    def held(self, number: int) -> dict[int, int]:
        """Return the newest iteration of each rank of a generation in memory, as reported."""
        store = (self.plane.reports[-1] if self.plane.reports else {}).get("memory_store") or {}
        return {
            entry["rank"]: entry["iteration"]
            for entry in store.get("holdings", [])
            if (entry["job"], entry["generation"]) == (self.job, number)
        }

    def wait_for_points(self, number: int, iteration: int) -> None:
        wait_until(
            lambda: len(self.held(number)) == 2 and min(self.held(number).values()) >= iteration,
            f"generation {number} has a recovery point in memory at iteration {iteration}",
            90,
        )

    def worker_process(self, number: int, rank: int) -> int:
        key = self.plane.worker(self.job, number, rank)["key"]
        return next(int(item["worker_pid"]) for item in self.agent.launchers() if item["folder"].name == key)

    def weights(self) -> tuple[dict[str, torch.Tensor], dict[str, Any]]:
        (completed,) = wait_until(
            lambda: [event for event in self.plane.events_of("completed") if event["job"] == self.job],
            "the job completes",
            120,
        )
        uri = next(item["uri"] for item in completed["artifacts"] if item["name"] == "weights.pt")
        content = Path(uri.removeprefix("file://")).read_bytes()
        return torch.load(io.BytesIO(content), weights_only=True), completed


def from_memory(number: int, world_size: int = 2) -> dict[str, Any]:
    """Return the start instruction for the state that a generation left in memory."""
    shards = [
        {"id": rank, "reader": rank % world_size, "holders": [{"tier": "memory", "server": "server-1"}]}
        for rank in range(2)
    ]
    return {"from": "memory", "generation": number, "world_size": 2, "shards": shards}


# Long enough for three starts of two workers on a busy machine.
@pytest.mark.timeout(400)
def test_training_after_a_killed_worker_ends_with_the_same_bits(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    training = Training(agent, plane)
    agent.start()
    plane.want(training.wanted(1))
    training.wait_for_points(1, 3)
    os.kill(training.worker_process(1, 1), signal.SIGKILL)
    (failed, *_others) = wait_until(lambda: plane.events_of("failed"), "the failure is reported")
    assert failed["generation"] == 1
    sequence = plane.reports[-1]["sequence"]
    wait_until(lambda: plane.reports[-1]["sequence"] > sequence + 1, "memory is reported")
    newest = training.held(1)
    end = max(newest.values()) + 5
    plane.want(training.wanted(2, end, start=from_memory(1)))
    weights, completed = training.weights()
    (first,) = [event for event in plane.events_of("first_iteration") if event["generation"] == 2]
    assert first["iteration"] == min(newest.values()) + 1
    assert (completed["generation"], completed["iteration"]) == (2, end)

    undisturbed = Training(agent, plane, "undisturbed")
    plane.want(undisturbed.wanted(1, end))
    expected, _ = undisturbed.weights()
    assert all(torch.equal(weights[name], expected[name]) for name in expected)
    digests = {event["sample_order_digest"] for event in plane.events_of("completed")}
    assert len(digests) == 1, "no sample was trained twice or left out"
    assert not plane.events_of("shard_stored"), "nothing went through the durable store"


@pytest.mark.live
@pytest.mark.timeout(400)
def test_a_killed_worker_costs_at_most_one_iteration(agent: RunningAgent, plane: FakeControlPlane) -> None:
    training = Training(agent, plane)
    agent.start()
    plane.want(training.wanted(1))
    training.wait_for_points(1, 20)
    os.kill(training.worker_process(1, 1), signal.SIGKILL)
    wait_until(lambda: plane.events_of("failed"), "the failure is reported")
    last = max(entry["iteration"] for entry in plane.metrics if entry["job"] == "job")
    plane.want(training.wanted(2, start=from_memory(1)))
    first = wait_until(
        lambda: [e for e in plane.events_of("first_iteration") if e["generation"] == 2],
        "training resumes",
        90,
    )[0]
    assert first["iteration"] >= last, "at most the iteration that was under way is lost"


@pytest.mark.timeout(400)
@pytest.mark.live
def test_a_suspended_job_resumes_from_its_servers_memory(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    training = Training(agent, plane)
    agent.start()
    first = training.wanted(1)
    plane.want(first)
    training.wait_for_points(1, 5)
    plane.want({**first, "goal": "suspend"})
    wait_until(lambda: len(plane.events_of("shard_stored")) == 2, "its state is durable")
    (stopped,) = {event["iteration"] for event in plane.events_of("shard_stored")}
    with plane.lock:
        plane.spare = ["job"]
    plane.want()
    wait_until(lambda: not plane.workers, "its workers are gone")
    training.wait_for_points(1, stopped)
    plane.want(training.wanted(2, start=from_memory(1)))
    begun = wait_until(
        lambda: [entry for entry in plane.events_of("first_iteration") if entry["generation"] == 2],
        "training resumes",
        90,
    )
    assert begun[0]["iteration"] == stopped + 1, "exactly where it stopped"
    assert begun[0]["waiting_seconds"] + begun[0]["loading_seconds"] <= begun[0]["pause_seconds"]


@pytest.mark.timeout(400)
@pytest.mark.live
def test_state_in_memory_survives_loss_of_the_store_then_of_the_agent(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    training = Training(agent, plane)
    agent.settings["emulate"] = {**DEVICE_MODEL, "fixed_seconds": 0.2}
    agent.start()
    plane.want(training.wanted(1))
    training.wait_for_points(1, 5)
    store = agent.store_process()
    assert store is not None
    # The store dies: a new one starts and soon holds the state again.
    os.kill(store, signal.SIGKILL)
    wait_until(lambda: agent.store_process() not in (None, store), "there is another store")
    sequence = plane.reports[-1]["sequence"]
    wait_until(lambda: plane.reports[-1]["sequence"] > sequence + 3, "the agent reports on")
    training.wait_for_points(1, 10)
    store = agent.store_process()
    # The agent and its workers die. The next agent finds the state in the store.
    agent.kill()
    iterations = training.held(1)
    for item in agent.launchers():
        if (item["folder"] / "assignment.json").exists():
            os.kill(item["worker_pid"], signal.SIGKILL)
    agent.start()
    training.wait_for_points(1, min(iterations.values()))
    assert agent.store_process() == store
    wait_until(lambda: plane.events_of("failed"), "the workers' end is reported")
    plane.want(training.wanted(2, start=from_memory(1)))
    first = wait_until(lambda: plane.events_of("first_iteration")[1:], "training resumes", 90)[0]
    assert (first["generation"], first["iteration"] > min(iterations.values())) == (2, True)
    training.wait_for_points(2, first["iteration"])
    wait_until(lambda: not training.held(1), "the first generation's state is freed")


@pytest.mark.timeout(400)
@pytest.mark.live
def test_memory_is_freed_when_a_job_ends_and_when_a_server_is_fenced(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    training = Training(agent, plane)
    agent.start()
    plane.want(training.wanted(1))
    training.wait_for_points(1, 3)
    with plane.lock:
        # The job has no GPUs, but its state is still needed.
        plane.remembered = ["job"]
    plane.want()
    wait_until(lambda: not plane.workers, "its workers are gone")
    assert training.held(1)
    with plane.lock:
        plane.remembered = []
    plane.want()
    wait_until(lambda: not training.held(1), "its memory is freed")
    assert plane.reports[-1]["memory_store"]["used_bytes"] == 0

    plane.want(training.wanted(2))
    training.wait_for_points(2, 3)
    with plane.lock:
        plane.remembered = ["job"]
        plane.refusals.append(409)
        plane.generations = []
        plane.version += 1
    wait_until(
        lambda: plane.reports[-1]["memory_store"] is not None and not training.held(2), "the state is freed"
    )


@pytest.mark.timeout(400)
@pytest.mark.live
def test_points_go_to_a_new_store_when_the_old_one_freezes(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    training = Training(agent, plane)
    agent.patches["workers.agent.storage.memory_store.STANDS_STILL_SECONDS"] = 8.0
    agent.start()
    plane.want(training.wanted(1))
    training.wait_for_points(1, 3)
    frozen = agent.store_process()
    assert frozen is not None
    os.kill(frozen, signal.SIGSTOP)
    begun = plane.worker("job", 1, 0)["iteration"]

    def last() -> dict[str, Any]:
        report: dict[str, Any] = plane.reports[-1]["memory_store"]
        return report

    wait_until(lambda: last().get("silent_seconds", 0.0) > 0.0, "it is reported")
    assert last()["protection"] == "none"
    wait_until(lambda: agent.store_process() not in (None, frozen), "another one takes its place")
    training.wait_for_points(1, begun + 1)
    assert not plane.events_of("failed"), "training went on"


@pytest.mark.timeout(400)
@pytest.mark.live
def test_starting_from_missing_memory_fails_with_a_reason(
    agent: RunningAgent, plane: FakeControlPlane
) -> None:
    training = Training(agent, plane)
    agent.start()
    plane.want(training.wanted(2, start=from_memory(1)))
    failures = wait_until(lambda: plane.events_of("failed"), "the start fails", 90)
    assert failures[0]["reason"] == "start_failed"
    assert "no recovery point in memory is whole on all ranks" in failures[0]["message"]


def test_no_store_starts_if_its_memory_is_zero(agent: RunningAgent, plane: FakeControlPlane) -> None:
    agent.settings["memory_store_bytes"] = 0
    agent.start()
    plane.want(generation())
    wait_until(lambda: plane.worker().get("iteration", 0) > 3, "it trains")
    assert agent.store_process() is None
    assert plane.reports[-1]["memory_store"] is None
