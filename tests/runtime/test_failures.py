"""A worker that cannot continue reports the reason and who is to blame."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
import torch

from punctual import artifact_path
from tests.runtime.conftest import REGRESSION, emulated, regression
from workers.runtime.at_home.local_agent import CheckpointFiles, LocalAgent
from workers.runtime.at_home.local_ports import LOOPBACK, free_port
from workers.runtime.checkpoints import write_final
from workers.runtime.failures import WorkerFailureError
from workers.runtime.process_group import listen_on
from workers.runtime.state.shards import own_shard, write_shard

HEAD = "from punctual import TrainingFunction\n"


def test_a_full_disk_is_a_storage_failure_not_a_function_error(tmp_path: Path) -> None:
    (tmp_path / "full").touch()
    with pytest.raises(WorkerFailureError) as caught:
        write_final(tmp_path, tmp_path / "full" / "artifacts", {"weight": torch.zeros(1)}, {})
    assert caught.value.reason == "storage_failed"


def test_an_error_in_train_names_the_users_own_lines(agent: LocalAgent) -> None:
    assignment = regression(hyperparameters={"fail_at": 3})
    generation = agent.start_generation(REGRESSION, assignment, 2).wait_until_ready().train_from_nothing()
    event = generation.leader.wait_for_event("failed")
    assert event["reason"] == "function_error"
    assert event["message"].startswith("train(): RuntimeError: no class called 'igloo' (regression.py, line ")
    assert "raise RuntimeError(\"no class called 'igloo'" in event["traceback"]
    assert "iteration.py" not in event["traceback"], "the runtime's own frames are no help"
    assert event["iteration"] == 3
    assert [worker.end() for worker in generation.workers] == [1, 1]


@pytest.mark.parametrize(
    ("source", "entry", "message"),
    [
        ("import does_not_exist\n", "broken:Job", "importing broken: ModuleNotFoundError: No module named"),
        ("def broken(:\n", "broken:Job", "importing broken: SyntaxError"),
        ("x = 1\n", "broken:Job", "broken defines no class 'Job'"),
        ("class Job: pass\n", "broken:Job", "broken:Job is not a subclass of punctual.TrainingFunction"),
        (HEAD + "class Job(TrainingFunction): pass\n", "broken:Job", "Job(): TypeError: Can't instantiate"),
        ("import sys; sys.exit(3)\n", "broken:Job", "importing broken: the function called sys.exit(3)"),
    ],
)
def test_a_function_that_cannot_be_loaded_is_refused_with_a_reason(
    agent: LocalAgent, tmp_path: Path, source: str, entry: str, message: str
) -> None:
    file = tmp_path / "broken.py"
    file.write_text(source)
    generation = agent.start_generation(file, regression(function={"entry": entry}), 1)
    event = generation.leader.wait_for_event("failed")
    assert event["reason"] == "function_load_error"
    assert event["message"].startswith(message)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        (
            "a\0b",
            "train() returned a metric that cannot be kept: a metric's name holds printable characters only",
        ),
        ("n" * 101, "train() returned a metric that cannot be kept: a metric's name has 1 to 100 characters"),
    ],
)
def test_an_invalid_metric_fails_when_first_returned(
    agent: LocalAgent, tmp_path: Path, name: str, message: str
) -> None:
    source = REGRESSION.read_text().replace('"distance"', repr(name))
    assert source != REGRESSION.read_text()
    file = tmp_path / REGRESSION.name
    file.write_text(source)
    generation = agent.start_generation(file, regression(), 1).wait_until_ready().train_from_nothing()
    event = generation.leader.wait_for_event("failed")
    assert event["reason"] == "function_error"
    assert event["message"].startswith(message)


def test_a_file_with_an_unusable_name_cannot_be_an_artifact() -> None:
    for name in ("n" * 201, "a\nb", "\ud800"):
        with pytest.raises(ValueError, match="artifact's name"):
            artifact_path(name)


def test_workers_detect_a_killed_peer_at_once(agent: LocalAgent) -> None:
    assignment = regression(iterations=10**6, device=emulated())
    generation = agent.start_generation(REGRESSION, assignment, 3).wait_until_ready().train_from_nothing()
    generation.wait_for_iteration(5)
    generation.workers[2].kill()
    for survivor in generation.workers[:2]:
        event = survivor.wait_for_event("failed")
        assert event["reason"] == "peer_lost"
        assert survivor.end() == 1


def test_a_taken_port_fails_the_start_and_not_the_function(agent: LocalAgent) -> None:
    port = free_port()
    with listen_on(LOOPBACK, port):
        generation = agent.start_generation(REGRESSION, regression(master_port=port), 1)
        event = generation.leader.wait_for_event("failed")
    assert event["reason"] == "start_failed"
    assert f"cannot listen on {LOOPBACK} port {port}" in event["message"]


def test_an_invalid_checkpoint_fails_the_start(agent: LocalAgent) -> None:
    generation = agent.start_generation(REGRESSION, regression(), 1).wait_until_ready()
    generation.train_from_checkpoint(CheckpointFiles(5, "periodic", [b"nonsense"]))
    event = generation.leader.wait_for_event("failed")
    assert event["reason"] == "start_failed"
    assert "is no shard of a state" in event["message"]


@pytest.mark.parametrize(
    ("parts", "complaint"),
    [
        ([(0, 2, 5), (1, 2, 6)], "iteration"),
        ([(0, 3, 5), (1, 3, 5)], "contradicts itself"),
        ([(0, 2, 5), (0, 2, 5)], "does not hold the slices"),
    ],
    ids=["of two iterations", "one missing", "one twice"],
)
def test_shards_that_are_not_one_state_fail_the_start_on_every_rank(
    agent: LocalAgent, tmp_path: Path, parts: list[tuple[int, int, int]], complaint: str
) -> None:
    files = []
    for rank, world_size, iteration in parts:
        weights = {"weight": torch.zeros(100)}
        state = {"generation": 1, "iteration": iteration, "model": weights, "optimizer": {"state": {}}}
        shard = own_shard(state, frozenset(weights), rank=rank, world_size=world_size, copy=True)
        write_shard(shard, tmp_path / "shard.pt")
        files.append((tmp_path / "shard.pt").read_bytes())
    generation = agent.start_generation(REGRESSION, regression(generation=2), 2).wait_until_ready()
    generation.train_from_checkpoint(CheckpointFiles(5, "periodic", files))
    messages = []
    for worker in generation.workers:
        event = worker.wait_for_event("failed")
        assert event["reason"] in ("start_failed", "peer_lost")
        messages.append(event["message"])
    assert any(complaint in message for message in messages)


def test_sigterm_ends_a_worker_even_inside_a_collective(agent: LocalAgent) -> None:
    generation = agent.start_generation(REGRESSION, regression(), 2).wait_until_ready()
    # Only rank 1 is ordered to train: it waits for rank 0's state in a collective.
    waiting = generation.workers[1]
    waiting.goal("train", {"from": "nothing"})
    waiting.wait_for_phase("loading")
    os.kill(waiting.process.pid, signal.SIGTERM)
    assert waiting.end() == 128 + signal.SIGTERM
