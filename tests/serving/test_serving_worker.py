"""A real worker process that serves: it loads weights, answers, drains, and refuses unservable models."""

from __future__ import annotations

import hashlib
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import torch

from workers.runtime.at_home.local_agent import Generation, LocalAgent
from workers.runtime.at_home.local_nursery import Nursery

FUNCTION = Path(__file__).parent / "functions" / "scaler.py"
TOKEN = "token-of-the-deployment"
FACTOR_THREE = {"weight": torch.tensor([[3.0]])}


Start = Callable[..., "Replica"]


@pytest.fixture(scope="module")
def agent(nursery: Nursery) -> Iterator[LocalAgent]:
    with LocalAgent(nursery.start_worker) as running:
        yield running


class Replica:
    """A worker that serves these weights."""

    def __init__(self, agent: LocalAgent, weights: dict[str, Any] | None, **serving: Any) -> None:
        (worker,) = agent.warm_workers(1)
        if weights is not None:
            torch.save(weights, worker.box / "in" / "weights.pt")
        assignment = {
            "purpose": "serving",
            "function": {"entry": "scaler:Scaler"},
            "hyperparameters": {},
            "files": [] if weights is None else [{"name": "weights.pt"}],
            "serving": {"drain_quiet_seconds": 0.3, **serving},
        }
        self.generation = Generation(agent, [worker], FUNCTION, assignment, {})
        self.worker = worker
        self.serve_for(TOKEN)
        url = f"http://127.0.0.1:{self.generation.handover_ports[0]}"
        self.client = httpx.Client(base_url=url, headers={"Authorization": f"Bearer {TOKEN}"}, timeout=60)

    def serve_for(self, token: str) -> None:
        digest = hashlib.sha256(token.encode()).hexdigest()
        self.generation.goal("serve", {"from": "serving", "tokens": [digest]})

    def close(self) -> None:
        self.client.close()
        self.worker.kill()

    def predict(self, *inputs: Any) -> httpx.Response:
        return self.client.post("/predict", json={"inputs": inputs})


@pytest.fixture
def start(agent: LocalAgent) -> Iterator[Start]:
    started: list[Replica] = []

    def start_replica(*arguments: Any, **serving: Any) -> Replica:
        started.append(Replica(agent, *arguments, **serving))
        started[-1].worker.wait_for_phase("serving")
        return started[-1]

    yield start_replica
    for replica in started:
        replica.close()


def test_stored_weights_are_served_until_drained(start: Start) -> None:
    replica = start(FACTOR_THREE)
    assert replica.predict(1, 2.5).json() == {"outputs": [3.0, 7.5], "generation": 1}
    assert replica.predict("one").status_code == 400
    assert "thirteen is a defect (scaler.py, line" in replica.predict(13).json()["detail"]
    counts = replica.worker.wait_for(lambda message: message.get("serving", {}).get("requests", 0) == 2)
    assert sum(counts["serving"]["latencies"]) == 2
    # Another token from now on: the worker reads it from a new `start`.
    replica.serve_for("later")
    later = {"Authorization": "Bearer later"}
    while replica.client.get("/ready", headers=later).status_code != 200:
        pass
    assert replica.client.get("/ready").status_code == 401
    replica.client.headers.update(later)
    statuses: list[int] = []
    begun = threading.Event()

    def ask_on() -> None:
        for _ in range(40):
            statuses.append(replica.predict(1).status_code)
            begun.set()

    asking = threading.Thread(target=ask_on)
    asking.start()
    begun.wait()
    replica.generation.goal("drain")
    asking.join()
    assert statuses == [200] * 40, "a draining worker answers until no request comes any more"
    replica.worker.wait_for_phase("completed")
    assert replica.worker.end() == 0


def test_model_without_a_job_is_as_init_model_makes_it(start: Start) -> None:
    replica = start(None)
    assert replica.predict(2).json()["outputs"] == [2.0]


def test_call_that_never_returns_ends_its_worker(start: Start) -> None:
    replica = start(FACTOR_THREE, predict_seconds=0.5)
    assert replica.predict("sleep").status_code == 504
    failed = replica.worker.wait_for_event("failed")
    assert (failed["reason"], failed["message"]) == (
        "function_error",
        "predict() did not return within 0.5 s",
    )
    assert "time.sleep(0.05)" in failed["traceback"]
    assert replica.worker.end() == 1


@pytest.mark.parametrize(
    ("weights", "entry", "words"),
    [
        (FACTOR_THREE, "scaler:Trainer", "has no method predict(batch, model)"),
        ({}, "scaler:Scaler", "the weights lack 1 tensors: weight"),
        ({**FACTOR_THREE, "bias": torch.zeros(1)}, "scaler:Scaler", "1 tensors: bias"),
        ({"weight": torch.zeros(2, 2)}, "scaler:Scaler", "cannot be loaded"),
        ({"weight": Path("/")}, "scaler:Scaler", "cannot be loaded"),
    ],
)
def test_an_unservable_model_is_a_load_error(
    weights: dict[str, Any], entry: str, words: str, tmp_path: Path
) -> None:
    from tests.serving.functions import scaler
    from workers.runtime.failures import WorkerFailureError
    from workers.serving.serving_model import load_model

    torch.save(weights, tmp_path / "weights.pt")
    function = getattr(scaler, entry.partition(":")[2])({})
    with pytest.raises(WorkerFailureError) as raised:
        load_model(function, entry, 0, tmp_path / "weights.pt", torch.device("cpu"))
    assert raised.value.reason == "function_load_error"
    assert words in raised.value.message
