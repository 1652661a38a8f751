"""A promised job takes borrowed GPUs of its own kind for as long as they are there, and none of its promise rests on them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.choices import LendingState, ReclaimState
from cluster.models import InferenceCluster
from scheduling.choices import JobState, PromiseOutcome
from scheduling.models import Job
from scheduling.services.lending_orchestrator import orchestrate
from tests.control_plane.lending import ask_back, known_on_eight, lend, servers_of, states
from tests.control_plane.simulated_agent import SimulatedAgent, settle

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


@pytest.fixture
def promised(
    inference: InferenceCluster,
    owned: SimulatedAgent,
    borrowed: tuple[SimulatedAgent, SimulatedAgent],
    submit: Submit,
) -> Job:
    """A promised job with time to spare that has grown onto a server on loan."""
    job = submit("slo", seconds=36_000, iterations=1_000_000)
    settle(owned, *borrowed)
    job.refresh_from_db()
    assert (job.promise_outcome, servers_of(job)) == (PromiseOutcome.OPEN, {"node-1"})
    known_on_eight(job)
    lend(inference, "serving-1")
    settle(owned, *borrowed)
    return job


def test_a_promised_job_grows_onto_a_server_on_loan_of_its_own_kind(promised: Job) -> None:
    promised.refresh_from_db()
    assert servers_of(promised) == {"node-1", "serving-1"}
    assert promised.state == JobState.RUNNING


def test_it_shrinks_to_its_own_servers_when_that_is_asked_back_and_its_promise_stands(
    inference: InferenceCluster,
    owned: SimulatedAgent,
    borrowed: tuple[SimulatedAgent, SimulatedAgent],
    promised: Job,
) -> None:
    order = ask_back(inference, 1)
    assert order.choice["servers"][0]["group"] == "flexible"
    settle(owned, *borrowed)
    orchestrate()
    order.refresh_from_db()
    promised.refresh_from_db()
    assert (order.state, states()["serving-1"]) == (ReclaimState.RETURNED, LendingState.INFERENCE)
    assert (promised.state, servers_of(promised)) == (JobState.RUNNING, {"node-1"})
    assert order.outcome["preempted_jobs"] == 0
    assert (promised.promise_outcome, promised.at_risk) == (PromiseOutcome.OPEN, False)
