"""One generation from start to end."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.runtime.conftest import REGRESSION, emulated, regression
from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.at_home.local_worker import LocalWorker


def test_a_worker_started_by_command_trains_and_stores_its_result() -> None:
    with LocalAgent() as agent:
        generation = agent.start_generation(REGRESSION, regression(iterations=120), 1).wait_until_ready()
        worker = generation.leader
        assert worker.of_kind("hello")[0]["warm"] is True
        generation.train_from_nothing()
        first = worker.wait_for_event("first_iteration")
        assert first["iteration"] == 1
        assert first["pause_seconds"] > 0
        report = generation.report()
        assert worker.end() == 0
        phases = list(dict.fromkeys(worker.of_kind("phase")))
        assert phases == ["preparing", "ready", "loading", "training", "finishing", "completed"]
        _check_result(worker.box / "out" / "final", report)
        assert "iteration 17\n" in (worker.box.parent / f"{worker.box.name}.log").read_text()


def _check_result(folder: Path, report: dict) -> None:
    weights = torch.load(folder / "weights.pt", weights_only=True)
    assert weights["0.weight"].shape == (24, 8)
    assert (folder / "note.txt").read_text() == "kept"
    losses = [point["values"]["loss"] for point in report["history"]]
    assert len(losses) == 120
    assert sum(losses[-10:]) < 0.3 * sum(losses[:10])
    assert report["reason"] == "max_iterations"
    assert set(report["final"]) == {"loss", "distance", "validation_loss"}


def test_metrics_and_progress_are_reported_while_it_trains(agent: LocalAgent) -> None:
    assignment = regression(iterations=30, device=emulated(fixed_seconds=0.02))
    generation = agent.start_generation(REGRESSION, assignment, 1).wait_until_ready().train_from_nothing()
    generation.report()
    metrics = generation.leader.of_kind("metrics")
    assert [entry["iteration"] for entry in metrics] == sorted({entry["iteration"] for entry in metrics})
    assert metrics[-1]["iteration"] == 30
    assert metrics[-1]["iterations_per_second"] > 0
    assert all(entry["train_seconds"] >= 0.02 for entry in metrics)
    announced = generation.leader.wait_for_file("final")
    assert announced["metrics"]["loss"] == metrics[-1]["values"]["loss"]


def test_a_target_ends_the_job_when_it_is_reached(agent: LocalAgent) -> None:
    assignment = regression(
        hyperparameters={"evaluate_every": 10},
        termination={"max_iterations": 2000, "target": {"metric": "validation_loss", "at_most": 0.1}},
    )
    generation = agent.start_generation(REGRESSION, assignment, 2).wait_until_ready().train_from_nothing()
    report = generation.report()
    assert report["reason"] == "target"
    assert report["iterations"] % 10 == 0
    assert report["final"]["validation_loss"] <= 0.1
    assert [worker.end() for worker in generation.workers] == [0, 0]


def test_a_function_may_stop_its_training(agent: LocalAgent) -> None:
    assignment = regression(iterations=500, hyperparameters={"patience": 7})
    generation = agent.start_generation(REGRESSION, assignment, 2).wait_until_ready().train_from_nothing()
    report = generation.report()
    assert (report["reason"], report["iterations"]) == ("should_stop", 7)


@pytest.mark.parametrize(
    "told", [{"checkpoint_seconds": 0.1}, {"checkpoint_seconds": 600, "safe_seconds": 0.1}]
)
def test_checkpoints_are_written_during_training(agent: LocalAgent, told: dict[str, Any]) -> None:
    """At their own period, and earlier if the newest safe state would exceed its maximum age."""
    assignment = regression(iterations=10_000, device=emulated(), **told)
    generation = agent.start_generation(REGRESSION, assignment, 2).wait_until_ready().train_from_nothing()
    worker = generation.leader
    first = worker.wait_for_file("checkpoint")
    worker.wait_for(lambda message: message.get("file", {}).get("iteration", 0) > first["iteration"])
    assert first["reason"] == "periodic"
    assert 0.0 < first["copy_seconds"] < first["writing_seconds"], "the cost that promises charge"
    assert set(worker.of_kind("phase")) <= {"preparing", "ready", "loading", "training"}
    state = torch.load(worker.box / first["path"], weights_only=True)
    assert state["iteration"] == first["iteration"]
    assert state["rest"]["function"] == {"iterations_seen": first["iteration"]}
    generation.stop()


def _restart_agent(worker: LocalWorker) -> None:
    """Replace the worker's agent by a new agent."""
    worker.hang_up()
    worker.messages.clear()
    worker.listen()


def test_a_worker_that_lost_its_agent_trains_on_and_reports_again(agent: LocalAgent) -> None:
    assignment = regression(iterations=10**6, device=emulated())
    generation = agent.start_generation(REGRESSION, assignment, 1).wait_until_ready()
    worker = generation.leader
    worker.auto_acknowledge = False
    event = generation.train_from_nothing().leader.wait_for_event("first_iteration")
    _restart_agent(worker)
    hello = worker.wait_for(lambda message: "hello" in message)["hello"]
    assert hello == {"warm": False, "job": "local", "generation": 1, "rank": 0, "pid": worker.process.pid}
    assert worker.wait_for_event("first_iteration") == event, "nobody had confirmed it"
    generation.goal("stop")
    assert worker.end() == 0


def test_an_acknowledged_event_is_not_sent_again(agent: LocalAgent) -> None:
    assignment = regression(iterations=5)
    generation = agent.start_generation(REGRESSION, assignment, 1, auto_store=False).wait_until_ready()
    worker = generation.train_from_nothing().leader
    worker.wait_for_event("first_iteration")
    worker.wait_for_file("final")
    _restart_agent(worker)
    # An unconfirmed file is announced again, and the worker waits for the confirmation before it ends.
    worker.wait_for_file("final")
    assert worker.of_kind("event") == []
    worker.send({"stored": "out/final"})
    assert worker.end() == 0


def test_a_stopped_worker_is_gone_at_once(agent: LocalAgent) -> None:
    generation = agent.start_generation(REGRESSION, regression(iterations=10**6), 2).wait_until_ready()
    generation.goal("stop")
    assert [worker.end() for worker in generation.workers] == [0, 0]


def test_the_reports_are_plain_json(agent: LocalAgent) -> None:
    assignment = regression(iterations=5, hyperparameters={"infinite": True})
    generation = agent.start_generation(REGRESSION, assignment, 1).wait_until_ready().train_from_nothing()
    report = generation.report()
    assert report["final"]["distance"] is None
    assert "distance" not in generation.leader.of_kind("metrics")[-1]["values"]
    json.dumps(generation.leader.messages, allow_nan=False)
