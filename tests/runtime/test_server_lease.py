"""A worker begins no iteration after its server's lease: all processes that would end it may be frozen
too."""

from __future__ import annotations

import threading
import time

import pytest

from tests.runtime.conftest import REGRESSION, emulated, regression
from workers.runtime import server_lease
from workers.runtime.at_home.local_agent import LocalAgent
from workers.runtime.failures import WorkerFailureError
from workers.runtime.server_lease import ServerLease


def from_now(seconds: float) -> float:
    return time.clock_gettime(time.CLOCK_BOOTTIME) + seconds


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(server_lease, "PATIENCE_SECONDS", 0.05)


@pytest.mark.usefixtures("impatient")
def test_the_latest_lease_counts() -> None:
    lease = ServerLease()
    lease.require()
    lease.update(from_now(-0.01))
    with pytest.raises(WorkerFailureError, match="lease of this worker's server is over"):
        lease.require()
    lease.update(from_now(60.0))
    lease.require()


def test_a_lease_sent_while_the_worker_was_busy_counts() -> None:
    lease = ServerLease()
    lease.update(from_now(-5.0))
    late = threading.Timer(0.05, lease.update, [from_now(60.0)])
    late.start()
    lease.require()
    late.join()


def test_training_stops_when_the_lease_ends(agent: LocalAgent) -> None:
    assignment = regression(iterations=100_000, device=emulated(fixed_seconds=0.02))
    generation = agent.start_generation(REGRESSION, assignment, 1).wait_until_ready()
    worker = generation.leader
    worker.send({"lease": from_now(60.0)})
    generation.train_from_nothing()
    worker.wait_for_phase("training")
    worker.send({"lease": from_now(0.0)})
    failed = worker.wait_for_event("failed")
    assert failed["reason"] == "lease_ended"
    assert "lease" in failed["message"]
    assert worker.end() != 0
