"""A promised job uses borrowed GPUs of its own kind, and its promise never depends on them."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cluster.choices import LendingState
from cluster.models import Cluster
from lending.choices import ReclaimState
from lending.models import InferenceCluster
from lending.services.orchestrator import orchestrate
from scheduling.choices import JobState, PromiseOutcome
from scheduling.models import Job
from scheduling.services.generations.generations import coming_generation, live_generation
from scheduling.services.planning.planning import run_planner
from tests.control_plane.generations.test_failures import fall_silent
from tests.control_plane.simulated_agent import SimulatedAgent, settle
from tests.lending.control_plane.orders import ask_back, known_on_eight, lend, servers_of, states, undone

pytestmark = pytest.mark.django_db(transaction=True)

Submit = Callable[..., Job]


def on_owned_servers(
    owned: SimulatedAgent, borrowed: tuple[SimulatedAgent, SimulatedAgent], submit: Submit
) -> Job:
    """Return a promised job with time to spare on its cluster's own server."""
    job = submit("slo", seconds=36_000, iterations=1_000_000)
    settle(owned, *borrowed)
    job.refresh_from_db()
    assert (job.promise_outcome, servers_of(job)) == (PromiseOutcome.OPEN, {"node-1"})
    known_on_eight(job)
    return job


def about_to_grow(
    inference: InferenceCluster,
    owned: SimulatedAgent,
    borrowed: tuple[SimulatedAgent, SimulatedAgent],
    submit: Submit,
) -> Job:
    """Return that job with a decided growth onto a borrowed server that agents have not obeyed yet."""
    job = on_owned_servers(owned, borrowed, submit)
    lend(inference, "serving-1")
    run_planner("test")
    assert "serving-1" in servers_of(job)
    return job


@pytest.fixture
def promised(
    inference: InferenceCluster,
    owned: SimulatedAgent,
    borrowed: tuple[SimulatedAgent, SimulatedAgent],
    submit: Submit,
) -> Job:
    """Return a promised job with time to spare that has grown onto a loaned server."""
    job = on_owned_servers(owned, borrowed, submit)
    lend(inference, "serving-1")
    settle(owned, *borrowed)
    return job


def test_reclaim_cancels_its_growth_onto_that_server(
    inference: InferenceCluster,
    owned: SimulatedAgent,
    borrowed: tuple[SimulatedAgent, SimulatedAgent],
    submit: Submit,
) -> None:
    job = about_to_grow(inference, owned, borrowed, submit)
    live, coming = live_generation(job), coming_generation(job)
    assert live is not None
    assert coming is not None
    with undone():
        ask_back(inference, 1)
        assert (live_generation(job), coming_generation(job)) == (live, None)
    # A change of its owned GPUs is not broken off with it, as though the plan needed one more from now on.
    extra = live.assignments.first()
    assert extra is not None
    extra.delete()
    ask_back(inference, 1)
    assert coming_generation(job) == coming


def test_it_grows_onto_its_own_kind_and_shrinks_on_reclaim(
    inference: InferenceCluster,
    owned: SimulatedAgent,
    borrowed: tuple[SimulatedAgent, SimulatedAgent],
    promised: Job,
) -> None:
    promised.refresh_from_db()
    assert (promised.state, servers_of(promised)) == (JobState.RUNNING, {"node-1", "serving-1"})
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


def test_its_promise_stands_though_the_borrowed_server_is_lost(
    cluster: Cluster,
    inference: InferenceCluster,
    owned: SimulatedAgent,
    borrowed: tuple[SimulatedAgent, SimulatedAgent],
    promised: Job,
) -> None:
    assert servers_of(promised) == {"node-1", "serving-1"}
    fall_silent(borrowed[0], cluster)
    settle(owned, borrowed[1])
    promised.refresh_from_db()
    assert (promised.state, servers_of(promised)) == (JobState.RUNNING, {"node-1"})
    assert (promised.promise_outcome, promised.at_risk, promised.failures) == (PromiseOutcome.OPEN, False, 0)
    assert states()["serving-1"] == LendingState.ON_LOAN, "until it is asked back, or heard of again"
    assert ask_back(inference, 1).state == ReclaimState.RETURNED
